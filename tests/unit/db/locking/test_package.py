"""Lock backends without a server: their defaults and the factory."""

from inspect import signature
from typing import cast

import pytest
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db.locking import (
    CompositeLockBackend,
    LockBackend,
    LockStrategy,
    MySQLAdvisoryLockBackend,
    MySQLRowLockBackend,
    MySQLTableLockBackend,
    make_lock_backend,
)
from conquiet.db.models import DbOperation, DbOperationType
from conquiet.errors import ConfigurationError

CONFIG = DbConfig("orders", id_column="order_no")
OP = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 1})
NO_CONNECTION = cast("Connection", None)


@pytest.mark.spec("CQ-005.6", "CQ-005.7")
def test_the_strategies_are_those_of_the_seed_and_one_is_a_combination() -> None:
    assert issubclass(LockStrategy, str)
    assert {member.name: member.value for member in LockStrategy} == {
        "ADVISORY": "advisory",
        "ROW": "row",
        "ADVISORY_AND_ROW": "advisory_and_row",
        "TABLE": "table",
        "NONE": "none",
    }


@pytest.mark.spec("CQ-005.19", "CQ-005.18")
def test_a_backend_is_abstract_and_takes_a_connection_never_an_engine() -> None:
    assert LockBackend.__abstractmethods__ == {"acquire", "release"}
    for backend in (
        LockBackend,
        MySQLAdvisoryLockBackend,
        MySQLRowLockBackend,
        MySQLTableLockBackend,
        CompositeLockBackend,
    ):
        for method in (backend.acquire, backend.release):
            parameters = signature(method).parameters
            assert list(parameters) == ["self", "conn", "op"]
            assert parameters["conn"].annotation is Connection
        assert "engine" not in signature(backend.__init__).parameters


@pytest.mark.spec("CQ-005.20", "CQ-005.25", "CQ-008.2")
def test_the_backends_have_the_defaults_of_the_seed() -> None:
    advisory = MySQLAdvisoryLockBackend()

    assert (advisory.lock_timeout, advisory.prefix) == (10, "conquiet_lock")
    assert MySQLRowLockBackend().id_column == "id"
    assert MySQLTableLockBackend().lock_timeout_s == 10


@pytest.mark.spec("CQ-005.20", "CQ-005.34", "CQ-005.31", "CQ-005.35", "CQ-005.36")
def test_the_factory_makes_the_backend_of_each_strategy() -> None:
    assert make_lock_backend(LockStrategy.NONE, CONFIG) is None
    advisory = make_lock_backend(LockStrategy.ADVISORY, CONFIG)
    assert type(advisory) is MySQLAdvisoryLockBackend
    assert vars(advisory) == vars(MySQLAdvisoryLockBackend())
    assert type(make_lock_backend(LockStrategy.TABLE, CONFIG)) is MySQLTableLockBackend
    row = make_lock_backend(LockStrategy.ROW, CONFIG)
    assert isinstance(row, MySQLRowLockBackend)
    assert row.id_column == "order_no"

    both = make_lock_backend(LockStrategy.ADVISORY_AND_ROW, CONFIG)
    assert isinstance(both, CompositeLockBackend)
    first, second = both.backends
    assert isinstance(first, MySQLAdvisoryLockBackend)
    assert vars(first) == vars(advisory)  # one name for both strategies: they exclude each other
    assert isinstance(second, MySQLRowLockBackend)
    assert second.id_column == "order_no"


@pytest.mark.spec("CQ-005.37")
@pytest.mark.parametrize("strategy", ["advisory", "gap", None, 3])
def test_an_unknown_strategy_is_a_value_error(strategy: object) -> None:
    with pytest.raises(ValueError, match="lock_strategy must be a LockStrategy") as caught:
        make_lock_backend(strategy, CONFIG)  # type: ignore[arg-type]
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.spec("CQ-005.28")
def test_releasing_a_row_lock_touches_nothing() -> None:
    MySQLRowLockBackend().release(NO_CONNECTION, OP)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MySQLAdvisoryLockBackend(lock_timeout=0),
        lambda: MySQLAdvisoryLockBackend(lock_timeout=True),
        lambda: MySQLAdvisoryLockBackend(prefix=""),
        lambda: MySQLRowLockBackend("id`; --"),
        lambda: MySQLTableLockBackend(-1),
    ],
)
def test_wrong_settings_of_a_backend_are_refused(make: object) -> None:
    with pytest.raises(ConfigurationError):
        make()  # type: ignore[operator]


def test_the_lock_timeout_reaches_the_backends_that_have_one() -> None:
    advisory = make_lock_backend(LockStrategy.ADVISORY, CONFIG, lock_timeout_s=3)
    table = make_lock_backend(LockStrategy.TABLE, CONFIG, lock_timeout_s=4)
    both = make_lock_backend(LockStrategy.ADVISORY_AND_ROW, CONFIG, lock_timeout_s=5)

    assert isinstance(advisory, MySQLAdvisoryLockBackend)
    assert isinstance(table, MySQLTableLockBackend)
    assert isinstance(both, CompositeLockBackend)
    first = both.backends[0]
    assert isinstance(first, MySQLAdvisoryLockBackend)
    assert (advisory.lock_timeout, table.lock_timeout_s, first.lock_timeout) == (3, 4, 5)


@pytest.mark.parametrize("strategy", [LockStrategy.NONE, LockStrategy.ROW])
def test_a_lock_timeout_that_could_have_no_effect_is_refused(strategy: LockStrategy) -> None:
    with pytest.raises(ConfigurationError, match="advisory and table locks only"):
        make_lock_backend(strategy, CONFIG, lock_timeout_s=3)
