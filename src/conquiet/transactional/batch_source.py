"""The effects of many messages in one transaction.

    run_batch  BEGIN ─ inbox rows of all ─ handler(new messages) ─ checks ─ COMMIT
               the handler raises: ROLLBACK, then a second transaction searches for the failing message:
               BEGIN ─ inbox rows of all ─ SAVEPOINT ─ handler(a half) ─ … until it is alone ─ SAVEPOINT ─ handler(the
               others) ─ DELETE of the inbox row of the failing message ─ checks ─ COMMIT
    run_each   BEGIN ─ inbox rows of all ─ for each new message: SAVEPOINT ─ handler(it) ─ RELEASE
                                                                 raises: ROLLBACK TO SAVEPOINT, its inbox row is deleted
                     ─ checks ─ COMMIT

So any number of failing messages costs a batch one more transaction. An error that ends the whole transaction (a
deadlock, a lost connection) is raised, not attributed to a message.

See docs/decisions/0044.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError

from conquiet.core.batch_run import BatchRun, Outcome, run_without_loop
from conquiet.core.functions import mark_cancellation, reject_awaitable, reject_unawaited
from conquiet.db.errors import UNAVAILABLE, DbErrorKind, fault_of
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, ConflictError, InfrastructureError, LifecycleError
from conquiet.transactional.cancelled_jobs import AsyncCancellation, SyncCancellation
from conquiet.transactional.inbox import Inbox
from conquiet.transactional.session_source import AsyncSource, Check, SyncSource
from conquiet.transactional.transaction_guard import TransactionGuard
from conquiet.transactional.unit_of_work import run_in

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection
    from sqlalchemy.orm import sessionmaker

F = TypeVar("F", bound=Callable[..., Any])
W = TypeVar("W")

_OUTER: Final = "SAVEPOINT conquiet_batch"
_SAVEPOINT: Final = "SAVEPOINT conquiet_member"
ROLL_BACK: Final = "ROLLBACK TO SAVEPOINT conquiet_member"
_NESTED: Final = 32
_ENDING: Final = frozenset({DbErrorKind.CONFLICT, DbErrorKind.LOCK_TIMEOUT, DbErrorKind.GONE}) | UNAVAILABLE


class SyncBatches:
    """Batches of plain functions.

    Args:
        source: Where sessions come from.
        inbox: Records the messages.
    """

    def __init__(self, source: SyncSource, inbox: Inbox) -> None:
        self.source = source
        self._inbox = inbox

    def cancellable(self, handle: F, received: Callable[[Any], Any]) -> F:
        """Mark a handler with the function that cancels its jobs, by a row in the inbox."""
        if isinstance(self._inbox, Inbox):
            mark_cancellation(handle, SyncCancellation(self.source, self._inbox, received).mark)
        return handle

    def run_batch(
        self, msgs: Sequence[Any], work: Callable[[Any, list[int]], object], check: Check
    ) -> list[Outcome] | None:
        """Run ``work(session, positions)`` once for all messages that have had no effect yet.

        Returns None if all have had it now, or the outcome of each message: None, or its own error.
        """
        in_work = False
        try:
            with DbSession(self.source.engine) as db, self._inbox.once_many(db, msgs) as first_time:
                new = _positions(first_time)
                if new:
                    db.before_commit(lambda _: check())
                    in_work = True
                    self.source.in_session(db, lambda session: _require_nothing(work(session, new)))
                    in_work = False
        except Exception as error:
            if not in_work or not _may_be_of_one(error, msgs):
                raise
        else:
            return None
        return self._search(msgs, work, check)

    def _search(self, msgs: Sequence[Any], work: Callable[[Any, list[int]], object], check: Check) -> list[Outcome]:
        """Find the messages that fail, in savepoints of one transaction; the others have their effect in it."""
        with self._transaction(msgs, check) as (db, guard, new, outcomes):
            ordinals = count()

            async def call(positions: list[int]) -> None:  # never suspends
                try:
                    error = self._in_savepoint(
                        db, next(ordinals), positions, lambda session, some: _require_nothing(work(session, some))
                    )
                except Exception as ending:
                    raise _TransactionEnded(ending) from ending
                guard.take_over(db.connection)
                if error is not None:
                    raise error

            try:
                found = run_without_loop(BatchRun(new, call).search())
            except _TransactionEnded as ended:
                raise ended.error from ended.error.__cause__
            outcomes.update(zip(new, found, strict=True))
        return list(outcomes.values())

    def run_each(self, msgs: Sequence[Any], work: Callable[[Any, int], object], check: Check) -> list[Outcome]:
        """Run ``work(session, position)`` for each message that has had no effect yet, each in a savepoint."""
        with self._transaction(msgs, check) as (db, _, new, outcomes):
            for ordinal, position in enumerate(new):
                outcomes[position] = self._in_savepoint(db, ordinal, position, work)
        return list(outcomes.values())

    @contextmanager
    def _transaction(
        self, msgs: Sequence[Any], check: Check
    ) -> Iterator[tuple[DbSession, TransactionGuard, list[int], dict[int, Outcome]]]:
        """Record all messages; yield the new positions, and the outcomes to fill in. Failed messages are forgotten."""
        outcomes: dict[int, Outcome] = dict.fromkeys(range(len(msgs)))
        with DbSession(self.source.engine) as db, self._inbox.once_many(db, msgs) as first_time:
            guard = TransactionGuard(db.connection)
            db.before_commit(lambda _: check())
            yield db, guard, _positions(first_time), outcomes
            if failed := _failed(msgs, outcomes):
                self._inbox.forget(db, failed)
            guard.allow_commit()

    def _in_savepoint(self, db: DbSession, ordinal: int, what: W, work: Callable[[Any, W], object]) -> Outcome:
        checks = db.checks
        outcome = self._rolled_back_if_failed(db, ordinal, what, work)
        if outcome is not None:
            db.drop_checks(checks)
        return outcome

    def _rolled_back_if_failed(self, db: DbSession, ordinal: int, what: W, work: Callable[[Any, W], object]) -> Outcome:
        if self.source.maker is not None:
            return self._in_orm_savepoint(db, self.source.maker, what, work)
        send = db.connection.exec_driver_sql
        for statement in savepoint_before(ordinal, db.engine.dialect.name):
            send(statement)
        try:
            reject_awaitable("the handler", work(db, what))
        except Exception as error:
            if ends_transaction(error):
                raise
            send(ROLL_BACK)
            return error
        return None

    def _in_orm_savepoint(
        self, db: DbSession, maker: "sessionmaker[Any]", what: W, work: Callable[[Any, W], object]
    ) -> Outcome:
        # SQLAlchemy's own savepoint: a failed flush rolls back the innermost savepoint that SQLAlchemy knows, or the
        # transaction if there is none.
        savepoint = db.connection.begin_nested()
        try:
            # The session is closed even after an error, before the outer savepoint: it has another savepoint.
            with maker(bind=db.connection) as session:
                reject_awaitable("the handler", work(session, what))
                session.commit()  # writes what it holds, and commits nothing
        except Exception as error:
            if ends_transaction(error):
                raise
            savepoint.rollback()
            return error
        savepoint.commit()
        return None


class AsyncBatches:
    """Batches of ``async def`` functions.

    Args:
        source: Where sessions come from.
        inbox: Records the messages.
    """

    def __init__(self, source: AsyncSource, inbox: Inbox) -> None:
        self.source = source
        self._inbox = inbox

    def cancellable(self, handle: F, received: Callable[[Any], Any]) -> F:
        """See ``SyncBatches.cancellable``."""
        if isinstance(self._inbox, Inbox):
            mark_cancellation(handle, AsyncCancellation(self.source, self._inbox, received).mark)
        return handle

    async def run_batch(
        self, msgs: Sequence[Any], work: Callable[[Any, list[int]], Awaitable[object]], check: Check
    ) -> list[Outcome] | None:
        """See ``SyncBatches.run_batch``."""
        from conquiet.transactional.async_transaction import AsyncTransaction

        in_work = False
        try:
            async with (
                AsyncTransaction(self.source.engine, before_commit=check) as connection,
                self._inbox.once_many(connection, msgs) as first_time,
            ):
                new = _positions(first_time)
                if new:
                    in_work = True
                    await self.source.in_session(connection, lambda session: _awaited(work(session, new)))
                    in_work = False
        except Exception as error:
            if not in_work or not _may_be_of_one(error, msgs):
                raise
        else:
            return None
        return await self._search(msgs, work, check)

    async def _search(
        self, msgs: Sequence[Any], work: Callable[[Any, list[int]], Awaitable[object]], check: Check
    ) -> list[Outcome]:
        """See ``SyncBatches._search``."""
        async with self._transaction(msgs, check) as (connection, new, outcomes):
            ordinals = count()

            async def call(positions: list[int]) -> None:
                try:
                    error = await self._in_savepoint(
                        connection, next(ordinals), positions, lambda session, some: _awaited(work(session, some))
                    )
                except Exception as ending:
                    raise _TransactionEnded(ending) from ending
                if error is not None:
                    raise error

            try:
                found = await BatchRun(new, call).search()
            except _TransactionEnded as ended:
                raise ended.error from ended.error.__cause__
            outcomes.update(zip(new, found, strict=True))
        return list(outcomes.values())

    async def run_each(
        self, msgs: Sequence[Any], work: Callable[[Any, int], Awaitable[object]], check: Check
    ) -> list[Outcome]:
        """See ``SyncBatches.run_each``. One after the other: they share a connection."""
        async with self._transaction(msgs, check) as (connection, new, outcomes):
            for ordinal, position in enumerate(new):
                outcomes[position] = await self._in_savepoint(connection, ordinal, position, work)
        return list(outcomes.values())

    @asynccontextmanager
    async def _transaction(
        self, msgs: Sequence[Any], check: Check
    ) -> "AsyncIterator[tuple[AsyncConnection, list[int], dict[int, Outcome]]]":
        """See ``SyncBatches._transaction``."""
        from conquiet.transactional.async_transaction import AsyncTransaction

        outcomes: dict[int, Outcome] = dict.fromkeys(range(len(msgs)))
        async with (
            AsyncTransaction(self.source.engine, before_commit=check) as connection,
            self._inbox.once_many(connection, msgs) as first_time,
        ):
            yield connection, _positions(first_time), outcomes
            if failed := _failed(msgs, outcomes):
                await run_in(connection, lambda unit: self._inbox.forget_in(unit, failed))

    async def _in_savepoint(
        self, connection: "AsyncConnection", ordinal: int, what: W, work: Callable[[Any, W], Awaitable[object]]
    ) -> Outcome:
        if self.source.maker is None:
            for statement in savepoint_before(ordinal, connection.dialect.name):
                await connection.exec_driver_sql(statement)
            try:
                reject_unawaited(await work(connection, what))
            except Exception as error:
                if ends_transaction(error):
                    raise
                await connection.exec_driver_sql(ROLL_BACK)
                return error
            return None
        savepoint = await connection.begin_nested()
        try:
            async with self.source.maker(bind=connection) as session:
                reject_unawaited(await work(session, what))
                await session.commit()  # writes what it holds, and commits nothing
        except Exception as error:
            if ends_transaction(error):
                raise
            await savepoint.rollback()
            return error
        await savepoint.commit()
        return None


def savepoint_before(ordinal: int, dialect: str) -> tuple[str, ...]:
    """Return the statements that begin the savepoint of a member.

    There is no RELEASE for each, which saves a third of the round trips: MySQL replaces a savepoint of the same name,
    and the others nest them. PostgreSQL becomes slow if they nest too deeply, so an outer one is released now and then.

    Args:
        ordinal: How many members of the transaction ran before it.
        dialect: Name of the database.
    """
    if dialect != "postgresql" or ordinal % _NESTED:
        return (_SAVEPOINT,)
    return (_OUTER, _SAVEPOINT) if ordinal == 0 else (f"RELEASE {_OUTER}", _OUTER, _SAVEPOINT)


def ends_transaction(error: Exception) -> bool:
    """Return whether an error has ended the whole transaction, and not only what its savepoint holds."""
    if isinstance(error, DBAPIError):
        return fault_of(error) in _ENDING
    return isinstance(error, ConflictError | InfrastructureError | LifecycleError)


class _TransactionEnded(BaseException):
    """Carries the error that has ended the transaction of a search."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _may_be_of_one(error: Exception, msgs: Sequence[Any]) -> bool:
    """Return whether an error of a call with all messages may be the error of some of them."""
    return len(msgs) > 1 and not ends_transaction(error)


def _positions(first_time: list[bool]) -> list[int]:
    return [position for position, is_first in enumerate(first_time) if is_first]


def _failed(msgs: Sequence[Any], outcomes: Mapping[int, Outcome]) -> list[Any]:
    return [msgs[position] for position, outcome in outcomes.items() if outcome is not None]


async def _awaited(work: Awaitable[object]) -> None:
    result = await work
    reject_unawaited(result)
    _require_nothing(result)


def _require_nothing(result: object) -> None:
    """Refuse exceptions that a batch handler returns: the effect of their messages is in the transaction."""
    reject_awaitable("the handler", result)
    if isinstance(result, list) and any(isinstance(one, Exception) for one in result):
        raise ConfigurationError(
            "a batch handler with a session returned exceptions, but its transaction holds the effects of all its "
            "messages: raise one of them. The batch is then rolled back and halved until the message is alone"
        )
