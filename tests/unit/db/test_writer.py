"""DbWriter on SQLite: arguments, batches, metrics, secrets, its end."""

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import Connection
from tests.unit.db.operations import insert, rows, sample, update

from conquiet import DbWriter as RootDbWriter
from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbWriter, LockStrategy, WriteOutcome
from conquiet.db.locking import LockBackend, make_lock_backend
from conquiet.errors import ConfigurationError, DbWriteError, LifecycleError

CANARY = "canary-4711"


@pytest.mark.spec("CQ-005.43", "CQ-005.44", "CQ-001.11", "CQ-006.19")
def test_a_writer_keeps_its_arguments_and_locks_only_on_request(sqlite: Engine) -> None:
    config = DbConfig("orders")

    writer = DbWriter(sqlite, config)

    assert RootDbWriter is DbWriter
    assert writer.engine is sqlite
    assert writer.db_config is config
    assert writer.lock_strategy is LockStrategy.NONE
    assert writer.lock_backend is None


@pytest.mark.spec("CQ-005.43", "CQ-005.44", "CQ-001.11")
@pytest.mark.parametrize("strategy", LockStrategy)
def test_a_writer_has_the_lock_that_was_asked_for_and_no_other(strategy: LockStrategy) -> None:
    engine, config = create_engine("mysql+pymysql://127.0.0.1/shop"), DbConfig("orders", id_column="number")

    writer = DbWriter(engine, config, strategy)

    assert writer.engine is engine
    assert writer.db_config is config
    assert writer.lock_strategy is strategy
    assert type(writer.lock_backend) is type(make_lock_backend(strategy, config))


@pytest.mark.spec("CQ-005.47")
@pytest.mark.parametrize("op_type", ["delete", None, "INSERT"])
def test_an_unsupported_operation_type_is_a_write_error(writer: DbWriter, op_type: Any) -> None:
    with pytest.raises(DbWriteError, match="neither INSERT nor UPDATE"):
        writer.execute(DbOperation("orders", op_type, 1, {"id": 1}))


@pytest.mark.spec("CQ-005.5")
def test_metadata_changes_nothing(writer: DbWriter, sqlite: Engine) -> None:
    class Untouchable(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError("metadata was looked at")

        __iter__ = keys = items = values = __len__ = __getitem__  # type: ignore[assignment]

    writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1, "amount": 1}, Untouchable()))
    writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 2}, Untouchable()))

    assert rows(sqlite)[1]["amount"] == 2


@pytest.mark.spec("CQ-005.46", "CQ-003.4")
@pytest.mark.parametrize(
    "op",
    [
        DbOperation("missing", DbOperationType.INSERT, 1, {"id": 1, "email": CANARY}),
        DbOperation("missing", DbOperationType.UPDATE, CANARY, {"email": CANARY}),
        DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1, "no_such_column": CANARY}),
        DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1, "email": object()}),
    ],
)
def test_any_failure_is_a_write_error_with_facts_and_no_value(writer: DbWriter, op: DbOperation) -> None:
    with pytest.raises(DbWriteError) as caught:
        writer.execute(op)

    error = caught.value
    assert (error.table, error.operation) == (op.table, op.op_type.value)
    assert error.__cause__ is not None
    assert CANARY not in f"{error} {error!r} {error.args}"


@pytest.mark.spec("CQ-005.48", "CQ-005.49", "CQ-001.12")
def test_writes_are_counted_and_timed_whether_they_succeed_or_fail(writer: DbWriter) -> None:
    def counts() -> tuple[float, float, float]:
        labels = {"table": "orders", "op_type": "insert"}
        return (
            sample("conquiet_db_write_total", status="success", **labels),
            sample("conquiet_db_write_total", status="error", **labels),
            sample("conquiet_db_write_latency_seconds_count", **labels),
        )

    success, error, timed = counts()
    writer.execute(insert(1))
    writer.execute(insert(1))
    with pytest.raises(DbWriteError):
        writer.execute(insert(2, nope=1))
    with pytest.raises(DbWriteError):
        writer.execute_many([insert(3, nope=1), insert(4, nope=1)])
    writer.execute_many([insert(5), insert(6), insert(7, amount=1), insert(8, amount=1)])

    # A batch is timed as the one write that it is; the last one was two.
    assert counts() == (success + 6, error + 3, timed + 6)


def test_many_keep_their_order_and_count_duplicates_one_by_one(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(2, amount=0))
    counted = sample("conquiet_db_duplicate_inserts_total", table="orders")

    outcomes = writer.execute_many([insert(1), insert(2), insert(3), update(3, amount=7), insert(4), insert(4)])

    new, old = WriteOutcome(rows=1), WriteOutcome(rows=0, duplicate=True)
    assert outcomes == [new, old, new, new, new, old]
    assert set(rows(sqlite)) == {1, 2, 3, 4}
    assert rows(sqlite)[3]["amount"] == 7
    assert sample("conquiet_db_duplicate_inserts_total", table="orders") == counted + 2


def test_a_batch_of_only_duplicates_reports_each(writer: DbWriter) -> None:
    ops = [insert(i) for i in range(5)]
    writer.execute_many(ops)

    assert writer.execute_many(ops) == [WriteOutcome(rows=0, duplicate=True)] * 5


def test_a_failed_batch_reports_how_many_were_completed(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(100, email=CANARY))

    with pytest.raises(DbWriteError) as caught:
        writer.execute_many([insert(1), insert(2), update(1, nope=1), insert(3)])
    assert caught.value.completed == 2
    with pytest.raises(DbWriteError) as caught:
        # The second unique key: found out one by one, so the row before it is there.
        writer.execute_many([insert(5, email="a"), insert(6, email=CANARY), insert(7, email="b")])

    assert caught.value.completed == 1
    assert set(rows(sqlite)) == {100, 1, 2, 5}
    assert CANARY not in str(caught.value)


def test_many_of_none_is_nothing(writer: DbWriter) -> None:
    assert writer.execute_many([]) == []


def test_wrong_arguments_are_refused(sqlite: Engine) -> None:
    with pytest.raises(ConfigurationError, match="engine must be"):
        DbWriter("mysql://", DbConfig("orders"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="db_config"):
        DbWriter(sqlite, "orders")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="lock_strategy"):
        DbWriter(sqlite, DbConfig("orders"), "row")  # type: ignore[arg-type]


def test_a_closed_writer_refuses_and_leaves_the_engine_open(sqlite: Engine) -> None:
    with DbWriter(sqlite, DbConfig("orders")) as writer:
        writer.execute(insert(1))

    with pytest.raises(LifecycleError):
        writer.execute(insert(2))
    writer.close()  # once more does nothing
    assert set(rows(sqlite)) == {1}


class RecordingLock(LockBackend):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        self.calls.append("acquire")

    def release(self, conn: Connection, op: DbOperation) -> None:
        self.calls.append("release")


@pytest.mark.spec("CQ-005.44")
def test_a_lock_backend_that_is_assigned_is_used_from_then_on(writer: DbWriter) -> None:
    writer.execute(insert(1))
    lock = RecordingLock()

    writer.lock_backend = lock
    writer.execute(update(1, amount=5))
    assert writer.lock_backend is lock
    assert lock.calls == ["acquire", "release"]

    writer.lock_backend = None
    writer.execute(update(1, amount=6))
    assert lock.calls == ["acquire", "release"]


def test_attributes_that_a_writer_cannot_change_refuse_assignment(writer: DbWriter) -> None:
    with pytest.raises(ConfigurationError, match="LockBackend or None"):
        writer.lock_backend = LockStrategy.ROW  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        writer.lock_strategy = LockStrategy.ROW  # type: ignore[misc]
    with pytest.raises(AttributeError):
        writer.db_config = DbConfig("other")  # type: ignore[misc]
