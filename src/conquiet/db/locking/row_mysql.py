"""A lock on the row itself: SELECT ... FOR UPDATE."""

from typing import Any

from sqlalchemy.engine import Connection

from conquiet.core.validation import require_identifier
from conquiet.db import sql
from conquiet.db.locking.base import LockBackend
from conquiet.db.locking.locking_read import lock_rows
from conquiet.db.models import DbOperation
from conquiet.errors import NoSuchRowError


class MySQLRowLockBackend(LockBackend):
    """Lock an existing row until the transaction ends. SPEC(003 §5.5).

    It waits as long as the server's ``innodb_lock_wait_timeout``. A row that does not exist
    cannot be locked: MySQL and MariaDB grant such a lock to every transaction that requests it, so this raises
    ``NoSuchRowError``. Where rows may be missing, use ADVISORY_AND_ROW.

    Args:
        id_column: Column that identifies the row.
    """

    def __init__(self, id_column: str = "id") -> None:
        self.id_column = require_identifier("id_column", id_column)

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        """Lock the row of the operation."""
        found = lock_rows(conn, sql.select_id(op.table, self.id_column, sql.FOR_UPDATE), {"w0": op.id_value}, op.table)
        if not found.rows:
            raise NoSuchRowError(f"there is no such row in {op.table}, so it cannot be locked", resource=op.table)

    def acquire_and_read(self, conn: Connection, op: DbOperation, id_column: str) -> dict[str, Any] | None:
        """Lock and read in one statement: the value comes from the locking read, never from a snapshot."""
        return lock_rows(
            conn, sql.select_row(op.table, id_column, sql.FOR_UPDATE), {"w0": op.id_value}, op.table
        ).first()

    def release(self, conn: Connection, op: DbOperation) -> None:
        """Do nothing: the lock ended with the transaction."""
