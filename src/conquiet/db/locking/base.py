"""The interface of a lock: acquired first, on the connection that writes, and released last.

See docs/decisions/0001.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sqlalchemy.engine import Connection

from conquiet.db import sql
from conquiet.db.locking.locking_read import lock_rows
from conquiet.db.models import DbOperation


class LockBackend(ABC):
    """Acquire and release one kind of lock on a given connection. SPEC(003 §5.3).

    The writer keeps this order, and every other caller of a backend must keep it too:

        acquire ─▶ read ─▶ write ─▶ COMMIT or ROLLBACK ─▶ release

    The lock is acquired first, because an earlier read may be stale. It is released last, because its
    next holder must find the write committed.

    Attributes:
        outlives_commit: COMMIT does not end the lock. A write of a single statement then needs no transaction
            around it: the statement commits itself under the lock, a round trip less.
    """

    outlives_commit: ClassVar[bool] = False

    @abstractmethod
    def acquire(self, conn: Connection, op: DbOperation) -> None:
        """Take the lock, or raise ``LockAcquisitionError`` and hold nothing."""
        ...

    @abstractmethod
    def release(self, conn: Connection, op: DbOperation) -> None:
        """Release the lock, after COMMIT or ROLLBACK. Does not raise.

        An error here would report a committed write as failed. If the
        lock cannot be released, the connection is closed, and the server frees the lock.
        """
        ...

    def acquire_and_read(self, conn: Connection, op: DbOperation, id_column: str) -> dict[str, Any] | None:
        """Take the lock, then read the row under it. None if there is no such row.

        The read is a locking one. The transaction may be older than the lock (a listener on the pool that has
        read something is enough to begin it), and a plain read would show the state of that time. Also, two spellings
        of an id may be one row to the server and two names to the lock.
        """
        self.acquire(conn, op)
        statement = sql.select_row(op.table, id_column, sql.FOR_UPDATE)
        try:
            return lock_rows(conn, statement, {"w0": op.id_value}, op.table).first()
        except BaseException:
            self.release(conn, op)  # nothing was written, so nothing must be rolled back first
            raise
