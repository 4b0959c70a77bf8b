"""Several locks as one. Only ADVISORY_AND_ROW uses it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from sqlalchemy.engine import Connection

from conquiet.db.locking.base import LockBackend
from conquiet.db.models import DbOperation
from conquiet.errors import ConfigurationError

T = TypeVar("T")


class CompositeLockBackend(LockBackend):
    """Acquire locks in order and release them in reverse. SPEC(003 §5.7).

    If one cannot be acquired, the earlier ones are released: either all are held or none.

    Args:
        backends: At least one lock, in the order of acquisition.
    """

    def __init__(self, backends: Sequence[LockBackend]) -> None:
        if not backends:
            raise ConfigurationError("backends must hold at least one lock backend")
        self.backends = list(backends)

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        """Take all locks."""
        self._acquire_with(conn, op, lambda last: last.acquire(conn, op))

    def acquire_and_read(self, conn: Connection, op: DbOperation, id_column: str) -> dict[str, Any] | None:
        """Take all locks; the last one reads, because it sees the newest state."""
        return self._acquire_with(conn, op, lambda last: last.acquire_and_read(conn, op, id_column))

    def release(self, conn: Connection, op: DbOperation) -> None:
        """Release all locks, the last one first."""
        for backend in reversed(self.backends):
            backend.release(conn, op)

    def _acquire_with(self, conn: Connection, op: DbOperation, take_last: Callable[[LockBackend], T]) -> T:
        *others, last = self.backends
        with ExitStack() as undo:
            for backend in others:
                backend.acquire(conn, op)
                undo.callback(backend.release, conn, op)
            taken = take_last(last)
            undo.pop_all()
        return taken
