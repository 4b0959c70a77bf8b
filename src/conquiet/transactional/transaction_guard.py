"""Keep the handler in one transaction: refuse its COMMIT or a second BEGIN, record an error that ended it.

The inbox row and the handler's effect share a transaction. It would be split by

    commit() of the connection                 refused: nothing is sent
    rollback(), then more statements           refused: the second BEGIN
    a deadlock that the handler catches        the server has rolled back everything, the inbox row too: continuing
    would commit the second half alone, so the error is raised at the end

SQLAlchemy's events report all of it: from a connection, an ORM session, or a library that the handler calls.

See docs/decisions/0006.
"""

from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from sqlalchemy import event

from conquiet.db.errors import ENDS_TRANSACTION, OperationInfo, as_write_error, fault_of
from conquiet.errors import LifecycleError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine, ExceptionContext

ENDED: Final = (
    "the transaction of the handler was committed or rolled back by the handler (commit() or rollback() of its "
    "connection, rollback() of its session, or COMMIT in a statement), so its effect and its inbox row are not one "
    "transaction any more. Leave the end of the transaction to conquiet: it commits when the handler returns, and "
    "rolls back when it raises"
)
_COMMIT: Final = (
    "the handler's transaction is committed by conquiet when the handler returns, together with its inbox row: "
    "remove commit() from the handler; nothing was sent"
)
_GUARD: Final = "_conquiet_guard"
_STATEMENT: Final = OperationInfo("a statement of the handler")


class TransactionGuard:
    """Guards the transaction that is open on a connection.

    Args:
        connection: In a transaction. Use it for nothing else afterwards.
    """

    __slots__ = ("_may_commit", "failure")

    def __init__(self, connection: "Connection") -> None:
        self.failure: BaseException | None = None
        self._may_commit = False
        _listen(connection.engine)
        # Per connection: engine-wide events would slow down every statement of the application.
        connection._has_events = True  # noqa: SLF001
        # An attribute, so that both end together. In a WeakKeyDictionary the traceback of a failure would keep the
        # connection, and with it the guard: memory that grows with each message.
        setattr(connection, _GUARD, self)

    def allow_commit(self) -> None:
        """Allow the next COMMIT.

        Raises:
            DbWriteError: An error has ended the transaction, although the handler caught it.
        """
        if self.failure is not None:
            raise as_write_error(self.failure, _STATEMENT) from self.failure
        self._may_commit = True

    def on_commit(self) -> None:
        """Refuse a COMMIT that conquiet did not send."""
        if not self._may_commit:
            raise LifecycleError(_COMMIT)


def _guard_of(connection: "Connection | None") -> TransactionGuard | None:
    return getattr(connection, _GUARD, None)


_listened: "WeakSet[Engine]" = WeakSet()


def _listen(engine: "Engine") -> None:
    if engine in _listened:
        return
    _listened.add(engine)
    had_events = engine._has_events  # noqa: SLF001
    event.listen(engine, "begin", _on_begin)
    event.listen(engine, "commit", _on_commit)
    engine._has_events = had_events  # noqa: SLF001 - only guarded connections report
    event.listen(engine, "handle_error", _on_error)


def _on_begin(connection: "Connection") -> None:
    if _guard_of(connection) is not None:
        raise LifecycleError(ENDED)


def _on_commit(connection: "Connection") -> None:
    guard = _guard_of(connection)
    if guard is not None:
        guard.on_commit()


def _on_error(context: "ExceptionContext") -> None:
    guard = _guard_of(context.connection)
    error = context.sqlalchemy_exception or context.original_exception
    if guard is not None and guard.failure is None and fault_of(error) in ENDS_TRANSACTION:
        guard.failure = error
