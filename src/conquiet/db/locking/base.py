"""What a lock is to the writer: taken first, on the writer's own connection, given back last."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sqlalchemy.engine import Connection

from conquiet.db import sql
from conquiet.db.locking.reading import lock_rows
from conquiet.db.models import DbOperation


class LockBackend(ABC):
    """Takes and gives back one kind of lock, on the connection it is handed. SPEC(003 §5.3).

    The writer keeps this order, and whoever else uses a backend has to keep it too:

        acquire ─▶ read ─▶ write ─▶ COMMIT or ROLLBACK ─▶ release

    The lock comes first, because a read before it may be stale already. It goes last, because who
    gets it next must find the write committed.

    Attributes:
        outlives_commit: COMMIT does not end the lock. A write of a single statement then needs no transaction
            around it: the statement commits itself under the lock, a round trip less.
    """

    outlives_commit: ClassVar[bool] = False

    @abstractmethod
    def acquire(self, conn: Connection, op: DbOperation) -> None:
        """Take the lock or raise ``LockAcquisitionError``, and then hold nothing."""
        ...

    @abstractmethod
    def release(self, conn: Connection, op: DbOperation) -> None:
        """Give the lock back, after COMMIT or ROLLBACK. Does not raise.

        By then the write is decided, and an error here would call a committed write failed. If the
        lock cannot be given back, the connection is closed instead, and the server frees it.
        """
        ...

    def acquire_and_read(self, conn: Connection, op: DbOperation, id_column: str) -> dict[str, Any] | None:
        """Take the lock, then read the row under it. None if there is no such row.

        The read is a locking one. The transaction may be older than the lock (a listener on the pool that has
        read something is enough to begin it), and a plain read would show what was there then. And an id that
        is spelled differently may be the same row to the server and another name to the lock.
        """
        self.acquire(conn, op)
        statement = sql.select_row(op.table, id_column, sql.FOR_UPDATE)
        try:
            return lock_rows(conn, statement, {"w0": op.id_value}, op.table).first()
        except BaseException:
            self.release(conn, op)  # nothing was written, so there is nothing that has to be rolled back first
            raise
