import inspect
import pickle

import pytest

from conquiet import errors
from conquiet.errors import (
    CommitUnknownError,
    ConfigurationError,
    ConquietError,
    DbWriteError,
    LockAcquisitionError,
    LockedWriteError,
    LockTimeoutError,
    MalformedMessageError,
    QueueError,
)

ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]


@pytest.mark.spec("CQ-003.3")
@pytest.mark.parametrize("cls", ALL)
def test_every_error_is_a_conquiet_error(cls: type[Exception]) -> None:
    assert issubclass(cls, ConquietError)


@pytest.mark.spec("CQ-003.4", "CQ-003.5", "CQ-003.6")
def test_the_seeds_errors_hang_directly_below_the_base() -> None:
    assert DbWriteError.__bases__ == LockAcquisitionError.__bases__ == QueueError.__bases__ == (ConquietError,)


@pytest.mark.parametrize("cls", ALL)
def test_the_tree_in_the_docstring_names_every_error(cls: type[Exception]) -> None:
    assert errors.__doc__ is not None
    assert cls.__name__ in errors.__doc__


@pytest.mark.parametrize("cls", ALL)
def test_an_error_crosses_process_borders_with_its_facts(cls: type[Exception]) -> None:
    facts = {name: f"the {name}" for name in inspect.getfullargspec(cls.__init__).kwonlyargs}
    error = cls("what happened", **facts)

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is cls
    assert str(back) == "what happened"
    assert {name: getattr(back, name) for name in facts} == facts


def test_a_wrong_setting_is_also_a_value_error() -> None:
    assert issubclass(ConfigurationError, ValueError)


def test_a_writer_without_its_lock_is_caught_either_way() -> None:
    error = LockedWriteError("no lock", table="orders", resource="orders:1", waited_s=10.0)

    assert isinstance(error, DbWriteError)
    assert isinstance(error, LockAcquisitionError)
    assert (error.table, error.resource, error.waited_s) == ("orders", "orders:1", 10.0)


def test_kinds_that_callers_tell_apart_are_told_apart() -> None:
    assert issubclass(CommitUnknownError, DbWriteError)
    assert issubclass(LockTimeoutError, LockAcquisitionError)
    assert issubclass(MalformedMessageError, QueueError)
