"""What a lock is to the writer: taken first, on the writer's own connection, given back last."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sqlalchemy.engine import Connection

from conquiet.db import sql
from conquiet.db.models import DbOperation
from conquiet.db.running import run


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
        """Take the lock, then read the row under it. None if there is no such row."""
        self.acquire(conn, op)
        try:
            return run(conn, sql.select_row(op.table, id_column), {"w0": op.id_value}).first()
        except BaseException:
            self.release(conn, op)  # nothing was written, so there is nothing that has to be rolled back first
            raise
