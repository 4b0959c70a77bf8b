import ast
import importlib
import inspect
import pickle
import pkgutil
from pathlib import Path

import pytest

import conquiet
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


# These do not reach a caller: their package catches them, or only the command line and the tests use them.
INNER = {
    "conquiet.cli", "conquiet.dashboard", "conquiet.testing", "conquiet.rabbitmq_api", "conquiet.processor.envelope",
    "conquiet.core.json_codec", "conquiet.rabbit.frames", "conquiet.rabbit.properties",
    "conquiet.redis_transport.async_connection", "conquiet.redis_transport.errors", "conquiet.scheduler.entry_codec",
    "conquiet.contrib.django.backend",  # can be imported with Django 6 only
    "conquiet.rabbit.batch_results",  # outcomes of messages in a batch; their workers settle them
    "conquiet.rabbit.spans",  # names an outcome in a trace; never raised
}  # fmt: skip
SIGNALS_OF_A_HANDLER = {"ConnectionCleanup", "Reject", "Retry"}


@pytest.mark.spec("CQ-003.3")
def test_every_error_is_in_the_tree() -> None:
    """A caller that catches ConquietError must also catch the errors that other modules define."""
    outside = set()
    for found in pkgutil.walk_packages(conquiet.__path__, "conquiet."):
        if found.name.endswith("__main__") or any(found.name.startswith(inner) for inner in INNER):
            continue
        for name, cls in vars(importlib.import_module(found.name)).items():
            ours = inspect.isclass(cls) and issubclass(cls, Exception) and cls.__module__ == found.name
            if ours and not name.startswith("_") and not issubclass(cls, ConquietError):
                outside.add(name)

    assert outside == SIGNALS_OF_A_HANDLER


@pytest.mark.spec("CQ-003.4", "CQ-003.5", "CQ-003.6")
def test_the_seeds_errors_hang_directly_below_the_base() -> None:
    assert DbWriteError.__bases__ == LockAcquisitionError.__bases__ == QueueError.__bases__ == (ConquietError,)


@pytest.mark.parametrize("cls", ALL)
def test_the_tree_in_the_docstring_names_every_error(cls: type[Exception]) -> None:
    assert errors.__doc__ is not None
    assert cls.__name__ in errors.__doc__


def facts_of(cls: type[Exception]) -> set[str]:
    return {name for base in cls.__mro__ if issubclass(base, ConquietError) for name in inspect.get_annotations(base)}


def test_an_undeclared_fact_is_refused() -> None:
    with pytest.raises(TypeError, match="has no fact 'streem'"):
        QueueError("x", streem="orders")


def test_every_error_is_raised_with_facts_that_it_declares() -> None:
    """Mypy does not see these keywords, and a misspelled one would hide the error behind a TypeError."""
    kinds = {cls.__name__: cls for cls in ALL}
    seen = 0
    for path in Path(conquiet.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                assert given <= facts_of(kinds[node.func.id]), f"{path.name}:{node.lineno}"
                seen += len(given)

    assert seen > 50


@pytest.mark.parametrize("cls", ALL)
def test_an_error_crosses_process_borders_with_its_facts(cls: type[Exception]) -> None:
    facts = {name: f"the {name}" for name in facts_of(cls)}
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


def test_an_error_can_be_caught_by_its_kind() -> None:
    assert issubclass(CommitUnknownError, DbWriteError)
    assert issubclass(LockTimeoutError, LockAcquisitionError)
    assert issubclass(MalformedMessageError, QueueError)


def test_a_lifecycle_error_is_a_runtime_error_too() -> None:
    """Programs that catch the standard library's error for a wrong order still work."""
    assert issubclass(errors.LifecycleError, RuntimeError)
