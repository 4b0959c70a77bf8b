"""What a lock leaves behind on a pooled connection, and in which order it is released."""

from typing import Any, cast

import pytest
from sqlalchemy.engine import Connection

from conquiet.db.errors import OperationInfo
from conquiet.db.locking import LockBackend, LockStrategy, MySQLTableLockBackend, advisory_mysql, table_mysql
from conquiet.db.locking.naming import row_lock_name
from conquiet.db.models import DbOperation, DbOperationType
from conquiet.db.update import Updates

OP = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 1})


class RecordingLock(LockBackend):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        self.log.append("acquired")

    def release(self, conn: Connection, op: DbOperation) -> None:
        self.log.append("released")


@pytest.mark.parametrize("failure", [RuntimeError("lost"), KeyboardInterrupt()])
def test_a_connection_whose_lock_release_failed_is_not_pooled(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    closed: list[object] = []

    class OpenConnection:
        invalidated = closed = False

    def execute(*_: object) -> None:
        raise failure

    monkeypatch.setattr(advisory_mysql, "execute", execute)
    monkeypatch.setattr(advisory_mysql, "invalidate", closed.append)
    conn = cast("Connection", OpenConnection())
    try:
        advisory_mysql.release_lock(conn, "conquiet_lock:x")
    except KeyboardInterrupt:
        assert isinstance(failure, KeyboardInterrupt)

    assert closed == [conn]


def test_a_table_lock_waits_as_long_as_its_own_backend_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers share a pool: the timeout of one must not stay on the connection for the other."""
    sent: list[Any] = []

    class PooledConnection:
        def __init__(self) -> None:
            self.info: dict[str, object] = {}

    def execute(_: object, statement: object, params: dict[str, Any] | None = None) -> None:
        sent.append(params["timeout"] if params else str(statement).split()[0])

    monkeypatch.setattr(table_mysql, "execute", execute)
    conn = cast("Connection", PooledConnection())
    for lock_timeout_s in (3, 7, 7):
        MySQLTableLockBackend(lock_timeout_s).acquire(conn, OP)

    assert sent == [3, "LOCK", 7, "LOCK", "LOCK"]


def test_tables_and_ids_that_join_alike_have_separate_lock_names() -> None:
    """The readable beginning is cut and the same for both: the digest alone separates them."""
    table = "orders_of_the_northern_branches_"

    one = row_lock_name("conquiet_lock", f"{table}1", 2, default_schema=None)
    other = row_lock_name("conquiet_lock", table, 12, default_schema=None)

    assert one != other


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
