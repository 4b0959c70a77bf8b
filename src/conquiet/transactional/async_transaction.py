"""One transaction of an ``AsyncEngine`` that stays correct when its task is cancelled.

    connecting   shielded: a connection that arrives after the cancellation is closed, not lost
    statements   cancelled immediately; SQLAlchemy invalidates the connection, because its reply may still arrive
    COMMIT       shielded: the task waits for the reply, then the cancellation continues. A lost reply is
                 CommitUnknownError
    ROLLBACK     shielded; after a cancellation the connection is closed instead, and the server rolls back

In every case the connection returns to its pool without a transaction, or it is closed. Nothing is left to the garbage
collector.

Preferred loss: a task that is cancelled during its COMMIT ends late, because an abandoned COMMIT may or may not have
happened. The wait is bounded: a server that does not reply is disconnected, and the COMMIT is then unknown.

See docs/decisions/0006.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from conquiet.db.commit_status import (
    PAUSE_S,
    TIMEOUT_S,
    CommitStatus,
    TransactionId,
    after_lost_reply,
    attempts,
    current_transaction,
    status_of,
)
from conquiet.db.dialects import is_postgres
from conquiet.db.engine_pool import separate_engine
from conquiet.db.errors import OperationInfo, as_write_error, is_transient
from conquiet.db.failover import is_demotion
from conquiet.db.transaction_guard import ENDED, TransactionGuard
from conquiet.errors import (
    CommitUnknownError,
    ConfigurationError,
    DatabaseUnavailableError,
    LifecycleError,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import RootTransaction

T = TypeVar("T")

_LIMIT_S: Final = 30.0
"""Longest wait of a cancelled task for the reply to a COMMIT or ROLLBACK."""

_CONNECT_LIMIT_S: Final = 5.0
"""Longest wait of a cancelled task for a connection. After that the connection is closed when it arrives."""

_QUERY_LIMIT_S: Final = 10.0
"""Longest wait for the status of a COMMIT, of one query."""

_TRANSACTION: Final = OperationInfo("the handler's transaction")
_STATEMENT: Final = OperationInfo("a statement of the handler")

# Tasks that outlive their caller. The event loop itself holds tasks weakly.
_detached: set["asyncio.Task[Any]"] = set()


class AsyncTransaction:
    """One connection and one transaction, from entering to leaving the ``async with`` block. Lives once.

    Raises ``DbWriteError`` (``ConflictError``, ``CommitUnknownError``, ``DatabaseUnavailableError``) for conflicts,
    lost connections and a failed COMMIT. Other errors leave the block unchanged, and roll back.

    Args:
        engine: Not in AUTOCOMMIT mode. It stays open.
        before_commit: Called right before COMMIT; if it raises, the transaction is rolled back.
    """

    def __init__(self, engine: AsyncEngine, *, before_commit: Callable[[], None] | None = None) -> None:
        self._engine = engine
        self._before_commit = before_commit
        self._connection: AsyncConnection | None = None
        self._root: RootTransaction | None = None
        self._guard: TransactionGuard | None = None

    async def __aenter__(self) -> AsyncConnection:
        if self._connection is not None:
            raise LifecycleError("this AsyncTransaction was entered before; create a new one")
        self._connection = connection = self._engine.connect()
        try:
            await _finish(self._begin(connection), limit_s=_CONNECT_LIMIT_S, on_detached=partial(_close, connection))
        except (asyncio.CancelledError, ConfigurationError) as error:
            await self._give_up(connection, error)
            raise
        except Exception as error:
            await self._give_up(connection, error)
            info = OperationInfo("opening a session")
            raise as_write_error(error, info, connecting=self._engine.sync_engine) from error
        return connection

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        connection, guard = self._connection, self._guard
        assert connection is not None and guard is not None  # noqa: S101, PT018 - entered
        if error is not None:
            await self._give_up(connection, error)
            origin = guard.origin_of(error)
            if isinstance(origin, DBAPIError) and is_transient(origin):
                raise as_write_error(origin, _STATEMENT) from origin
            return
        try:
            await self._commit(connection)
        except BaseException as failure:
            await self._give_up(connection, failure)
            raise

    async def _begin(self, connection: AsyncConnection) -> None:
        await connection.start()
        if connection.sync_connection._is_autocommit_isolation():  # type: ignore[union-attr]  # noqa: SLF001
            raise ConfigurationError("the inbox needs transactions, and this engine is in AUTOCOMMIT mode")
        self._root = await connection.run_sync(lambda inner: inner.begin())
        self._guard = TransactionGuard(self._root.connection)

    async def _commit(self, connection: AsyncConnection) -> None:
        assert self._guard is not None  # noqa: S101 - entered
        self._reject_ended(connection)
        if self._before_commit is not None:
            self._before_commit()
        transaction = await self._identify(connection) if is_postgres(self._engine.sync_engine) else None
        self._guard.allow_commit()
        end = self._end(connection, transaction)
        await _finish(end, limit_s=_LIMIT_S, on_late=partial(_disconnect, connection))

    async def _end(self, connection: AsyncConnection, transaction: TransactionId | None) -> None:
        """COMMIT and return the connection: one task for both."""
        await self._send_commit(connection, transaction)
        await connection.close()

    async def _identify(self, connection: AsyncConnection) -> TransactionId | None:
        """Return the id of PostgreSQL's transaction, to resolve it if the reply to COMMIT is lost."""
        try:
            return await connection.run_sync(current_transaction, _TRANSACTION.operation)
        except DBAPIError as error:
            raise as_write_error(error, _TRANSACTION) from error

    async def _send_commit(self, connection: AsyncConnection, transaction: TransactionId | None) -> None:
        try:
            await connection.commit()
        except Exception as error:
            failure = as_write_error(error, _TRANSACTION, committing=True)
            if not is_postgres(self._engine.sync_engine) or not isinstance(failure, CommitUnknownError):
                raise failure from error
            await connection.invalidate()
            if transaction is None:
                return  # it has written nothing, so it does not matter whether it committed
            resolved = after_lost_reply(await resolve_commit_async(self._engine, transaction), failure)
            if resolved is not None:
                raise resolved from error

    def _reject_ended(self, connection: AsyncConnection) -> None:
        inner = connection.sync_connection
        if inner is None or inner.invalidated:
            raise DatabaseUnavailableError(
                "the connection of the handler's transaction was lost before COMMIT was sent; the server rolls back"
            )
        root = self._root
        if root is None or inner.get_transaction() is not root or not root.is_active:
            raise LifecycleError(ENDED)

    async def _give_up(self, connection: AsyncConnection, error: BaseException) -> None:
        """Roll back and return the connection, or close it. Raises only a cancellation."""
        try:
            if is_demotion(error):
                await _finish(self._engine.dispose(), limit_s=_LIMIT_S)  # new connections may reach the new primary
            await _finish(_roll_back(connection, error), limit_s=_LIMIT_S, on_late=partial(_disconnect, connection))
        except Exception:  # noqa: BLE001 - the error that brought us here is the one to report
            _disconnect(connection)


async def resolve_commit_async(
    engine: AsyncEngine, transaction: TransactionId, *, timeout_s: float = TIMEOUT_S
) -> CommitStatus:
    """Do what ``db.commit_status.resolve_commit`` does. Never raises an error of the database.

    Args:
        engine: The engine of the lost connection.
        transaction: The transaction to resolve.
        timeout_s: Longest wait for the server.
    """
    separate = AsyncEngine(separate_engine(engine.sync_engine))
    try:
        for end_backend in attempts(timeout_s):
            with suppress(SQLAlchemyError, OSError):  # unavailable; TimeoutError is an OSError
                async with asyncio.timeout(_QUERY_LIMIT_S), separate.connect() as connection:
                    found = await connection.run_sync(status_of, transaction, end_backend=end_backend)
                    if found is not None:
                        return found
            await asyncio.sleep(PAUSE_S)
    finally:
        await separate.dispose()
    return CommitStatus.UNKNOWN


async def _roll_back(connection: AsyncConnection, error: BaseException) -> None:
    if connection.closed:
        return
    try:
        # After a cancellation a reply may still be on its way; the next user would take it for theirs. Without a
        # transaction of SQLAlchemy's, after a refused COMMIT, rollback() would send nothing. A connection to a server
        # that refuses writes must not go back: its pool was replaced, and would keep it open.
        if isinstance(error, Exception) and connection.in_transaction() and not is_demotion(error):
            await connection.rollback()
        else:
            await connection.invalidate()
    except Exception:  # noqa: BLE001 - the server rolls back when the connection ends
        await connection.invalidate()
    finally:
        await connection.close()


async def _close(connection: AsyncConnection) -> None:
    """Close a connection that was opened after the task was cancelled."""
    if not connection.closed:
        await connection.invalidate()
        await connection.close()


def _disconnect(connection: AsyncConnection) -> None:
    """Close the socket of a connection that does not reply, so that the wait for the reply fails."""
    inner = connection.sync_connection
    if inner is None or inner.closed or inner.invalidated:
        return
    adapted: Any = inner.connection.dbapi_connection
    # SQLAlchemy 2.0.36 has the second name only. Called outside of a greenlet, as here, it does not wait.
    close = getattr(adapted, "_terminate_force_close", None) or getattr(adapted, "terminate", None)
    if close is not None:
        close()


async def _finish(
    work: Coroutine[Any, Any, T],
    *,
    limit_s: float = _LIMIT_S,
    on_late: Callable[[], None] | None = None,
    on_detached: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> T:
    """Run ``work`` to its end even if the current task is cancelled; then raise the cancellation.

    Args:
        work: The coroutine that must not be interrupted.
        limit_s: Longest wait of a cancelled task for ``work``.
        on_late: Called when that limit has passed: makes ``work`` end soon.
        on_detached: Run after ``work`` if the task did not wait for its end.

    Raises:
        asyncio.CancelledError: The current task was cancelled during ``work``, and ``work`` ended without an error.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise
    if not await _wait(task, limit_s) and on_late is not None:
        on_late()
        await _wait(task, 1.0)
    if not task.done():
        _detach(task, on_detached)
    elif not task.cancelled() and (failure := task.exception()) is not None:
        raise failure
    raise asyncio.CancelledError


async def _wait(task: "asyncio.Task[Any]", limit_s: float) -> bool:
    """Wait until a task is done, for a limited time, although the current task is cancelled again."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not task.done() and (left_s := deadline - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left_s)
        except asyncio.CancelledError:
            continue  # reported by the caller, once
    return task.done()


def _detach(task: "asyncio.Task[Any]", then: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    async def end() -> None:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        if then is not None:
            await then()

    for one in (task, asyncio.ensure_future(end())):
        _detached.add(one)
        one.add_done_callback(_detached.discard)
