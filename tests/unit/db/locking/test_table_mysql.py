"""Table locks on pooled connections."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from conquiet.db.locking import MySQLTableLockBackend, table_mysql
from conquiet.db.models import DbOperation, DbOperationType

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

OP = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 1})


def test_a_table_lock_waits_as_long_as_its_own_backend_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers share a pool: the timeout of one must not stay on the connection for the other.

    Servers have whole seconds only: a fraction is rounded up.
    """
    sent: list[Any] = []

    class PooledConnection:
        def __init__(self) -> None:
            self.info: dict[str, object] = {}

    def execute(_: object, statement: object, params: dict[str, Any] | None = None) -> None:
        sent.append(params["timeout"] if params else str(statement).split()[0])

    monkeypatch.setattr(table_mysql, "execute", execute)
    conn = cast("Connection", PooledConnection())
    for lock_timeout_s in (3, 6.5, 7):
        MySQLTableLockBackend(lock_timeout_s).acquire(conn, OP)

    assert sent == [3, "LOCK", 7, "LOCK", "LOCK"]
