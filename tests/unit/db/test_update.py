"""UPDATE and modify on SQLite."""

from typing import Any, cast

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from tests.unit.db.operations import insert, rows, update

from conquiet.db import DbOperation, DbOperationType, DbWriter, WriteOutcome
from conquiet.db.errors import OperationInfo
from conquiet.db.locking import LockBackend, LockStrategy
from conquiet.db.update import Updates
from conquiet.errors import ConfigurationError

OP = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 1})


class RecordingLock(LockBackend):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        self.log.append("acquired")

    def release(self, conn: Connection, op: DbOperation) -> None:
        self.log.append("released")


@pytest.mark.spec("CQ-005.1", "CQ-005.45", "CQ-005.54", "CQ-008.3")
def test_update_sets_all_columns_of_the_row_except_the_id(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute_many([insert(1, amount=1), insert(2, amount=2)])

    outcome = writer.execute(update(1, id=2, amount=5))

    assert outcome == WriteOutcome(rows=1)
    assert {id_: row["amount"] for id_, row in rows(sqlite).items()} == {1: 5, 2: 2}


def test_a_column_called_like_a_bind_does_not_redirect_the_update(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute_many([insert(1, amount=1), insert(2, amount=2)])

    writer.execute(update(1, id_value=2, amount=5))

    assert {id_: row["amount"] for id_, row in rows(sqlite).items()} == {1: 5, 2: 2}
    assert rows(sqlite)[1]["id_value"] == 2


@pytest.mark.spec("CQ-005.55")
@pytest.mark.parametrize("payload", [{}, {"id": 1}])
def test_an_update_of_nothing_changes_nothing(writer: DbWriter, sqlite: Engine, payload: dict[str, Any]) -> None:
    writer.execute(insert(1, amount=1))
    before = rows(sqlite)

    assert writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, payload)) == WriteOutcome(rows=0)
    assert rows(sqlite) == before


def test_an_update_that_matches_no_row_is_no_error(writer: DbWriter) -> None:
    assert writer.execute(update(404, amount=1)) == WriteOutcome(rows=0)


@pytest.mark.spec("CQ-005.14")
def test_modify_reads_asks_and_writes(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(1, amount=10))

    outcome = writer.modify(1, lambda row: {"amount": row["amount"] + 1, "id": 99})

    assert outcome == WriteOutcome(rows=1)
    assert rows(sqlite)[1]["amount"] == 11


def test_modify_may_leave_the_row_alone_or_find_none(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(1, amount=10))
    before = rows(sqlite)

    assert writer.modify(1, lambda _: None) == WriteOutcome(rows=0)
    assert writer.modify(1, lambda _: {"id": 5}) == WriteOutcome(rows=0)
    assert writer.modify(404, lambda _: pytest.fail("called without a row")) == WriteOutcome(rows=0)
    assert rows(sqlite) == before


def test_an_error_of_change_is_raised_and_nothing_is_written(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(1, amount=10))

    with pytest.raises(ZeroDivisionError):
        writer.modify(1, lambda _: {"amount": 1 // 0})
    with pytest.raises(ConfigurationError, match="change must return"):
        writer.modify(1, lambda _: 7)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="identifier"):
        writer.modify(1, lambda _: {"amount = 0 --": 1})

    assert rows(sqlite)[1]["amount"] == 10


def test_a_failed_write_is_rolled_back_before_its_lock_is_released() -> None:
    """The next owner of the lock must neither wait for the failed write nor see it."""
    log: list[str] = []

    class Checkout:
        conn = cast("Connection", None)

        def abort(self, error: BaseException) -> None:
            log.append(f"rolled back after {type(error).__name__}")

    updates = Updates("id", LockStrategy.ADVISORY, RecordingLock(log))
    with (
        pytest.raises(LookupError),
        updates._holding(cast("Any", Checkout()), OP, OperationInfo("update", "orders"), reading=False),
    ):
        raise LookupError

    assert log == ["acquired", "rolled back after LookupError", "released"]
