"""Keep other code in one transaction: refuse its COMMIT or a second BEGIN, record an error that ended the transaction.

An inbox row and the effect of its message share a transaction. It would be split by

    commit() of the connection               refused: nothing is sent
    rollback(), then more statements         refused: the second BEGIN
    a deadlock that the code catches         the server has rolled back everything, the inbox row too: continuing
                                             would commit the second half alone, so the error is raised at the end

SQLAlchemy's events report all of it: from the connection, an ORM session on it, or a library that uses it.

See docs/decisions/0006.
"""

from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from conquiet.db.errors import ENDS_TRANSACTION, OperationInfo, as_write_error, fault_of
from conquiet.errors import LifecycleError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine, ExceptionContext

ENDED: Final = (
    "the transaction was committed or rolled back by other code (commit() or rollback() of its connection, rollback() "
    "of an ORM session on it, or COMMIT in a statement), so it is no longer one transaction: an effect and its inbox "
    "row could be separated. Leave its end to conquiet, which commits when the handler or the block of the session "
    "ends, and rolls back when that raises"
)
_COMMIT: Final = (
    "conquiet commits the transaction when the handler or the block of the session ends, together with an inbox row: "
    "remove commit() of its connection; nothing was sent"
)
_GUARD: Final = "_conquiet_guard"
_STATEMENT: Final = OperationInfo("a statement on the connection of the transaction")


class TransactionGuard:
    """Guards the transaction that is open on a connection.

    Args:
        connection: In a transaction. Use it for nothing else afterwards, unless the guard was lifted.

    Attributes:
        failure: The error that has ended the transaction, if any.
        is_lifted: True once the transaction may end.
    """

    __slots__ = ("failure", "is_lifted")

    def __init__(self, connection: "Connection") -> None:
        self.failure: BaseException | None = None
        self.is_lifted = False
        _listen(connection.engine)
        # Per connection: engine-wide events would slow down every statement of the application.
        connection._has_events = True  # noqa: SLF001
        # An attribute, so that both end together. In a WeakKeyDictionary the traceback of a failure would keep the
        # connection, and with it the guard: memory that grows with each message.
        setattr(connection, _GUARD, self)

    def allow_commit(self) -> None:
        """Allow the next COMMIT.

        Raises:
            DbWriteError: An error has ended the transaction, although the code that got it caught it.
        """
        if self.failure is not None:
            raise as_write_error(self.failure, _STATEMENT) from self.failure
        self.is_lifted = True

    def origin_of(self, error: BaseException) -> BaseException:
        """Return the error that has ended the transaction, if this is one of SQLAlchemy that follows from it."""
        return error if self.failure is None or not isinstance(error, SQLAlchemyError) else self.failure


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
    _refuse(connection, ENDED)


def _on_commit(connection: "Connection") -> None:
    _refuse(connection, _COMMIT)


def _refuse(connection: "Connection", reason: str) -> None:
    guard = _guard_of(connection)
    if guard is not None and not guard.is_lifted:
        raise LifecycleError(reason)


def _on_error(context: "ExceptionContext") -> None:
    guard = _guard_of(context.connection)
    error = context.sqlalchemy_exception or context.original_exception
    if guard is not None and guard.failure is None and fault_of(error) in ENDS_TRANSACTION:
        guard.failure = error
