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

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from sqlalchemy.engine import Connection, NestedTransaction
from sqlalchemy.exc import DBAPIError

from conquiet.core.batch_run import BatchRun, Outcome
from conquiet.db.errors import is_transient
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, ConflictError, InfrastructureError, LifecycleError
from conquiet.transactional.inbox import Inbox
from conquiet.transactional.session_source import AsyncSource, Check, SyncSource

P = TypeVar("P")
PartWork = Callable[[Any, P], Awaitable[object]]

_OUTER: Final = "SAVEPOINT conquiet_batch"
_SAVEPOINT: Final = "SAVEPOINT conquiet_member"
ROLL_BACK: Final = "ROLLBACK TO SAVEPOINT conquiet_member"
_NESTED: Final = 32


class Batches:
    """Batches of one handler.

    Args:
        source: Where sessions come from.
        inbox: Records the messages.
    """

    def __init__(self, source: SyncSource | AsyncSource, inbox: Inbox) -> None:
        self.source = source
        self._source: Any = source  # the type of its sessions is not known here
        self.inbox = inbox

    async def run_batch(self, msgs: Sequence[Any], work: PartWork[list[int]], check: Check) -> list[Outcome] | None:
        """Run ``work(session, positions)`` once for all messages that have had no effect yet.

        Returns None if all have had it now, or the outcome of each message: None, or its own error.
        """
        in_work = False
        try:
            async with self._source.batch(self.inbox, msgs, check) as (session, first_time):
                new = _positions(first_time)
                if new:
                    in_work = True
                    await self._source.in_session(session, lambda own: _require_nothing(work(own, new)))
                    in_work = False
        except Exception as error:
            if not in_work or len(msgs) == 1 or ends_transaction(error):
                raise
        else:
            return None
        return await self._search(msgs, work, check)

    async def _search(self, msgs: Sequence[Any], work: PartWork[list[int]], check: Check) -> list[Outcome]:
        """Find the messages that fail, in savepoints of one transaction; the others have their effect in it."""
        async with self._transaction(msgs, check) as (session, new, outcomes):
            ordinals = count()

            async def call(positions: list[int]) -> None:
                try:
                    error = await self._in_savepoint(
                        session, next(ordinals), positions, lambda own, some: _require_nothing(work(own, some))
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

    async def run_each(self, msgs: Sequence[Any], work: PartWork[int], check: Check) -> list[Outcome]:
        """Run ``work(session, position)`` for each message that has had no effect yet, each in a savepoint.

        One after the other: they share a connection.
        """
        async with self._transaction(msgs, check) as (session, new, outcomes):
            for ordinal, position in enumerate(new):
                outcomes[position] = await self._in_savepoint(session, ordinal, position, work)
        return list(outcomes.values())

    @asynccontextmanager
    async def _transaction(
        self, msgs: Sequence[Any], check: Check
    ) -> AsyncIterator[tuple[Any, list[int], dict[int, Outcome]]]:
        """Record all messages; yield the new positions, and the outcomes to fill in. Failed messages are forgotten."""
        outcomes: dict[int, Outcome] = dict.fromkeys(range(len(msgs)))
        async with self._source.batch(self.inbox, msgs, check) as (session, first_time):
            yield session, _positions(first_time), outcomes
            if failed := [msgs[position] for position, outcome in outcomes.items() if outcome is not None]:
                await self._source.in_unit(session, lambda unit: self.inbox.rows.forget(unit, failed))

    async def _in_savepoint(self, session: Any, ordinal: int, what: P, work: PartWork[P]) -> Outcome:
        on_connection = partial(self._source.on_connection, session)
        checks = session.checks if isinstance(session, DbSession) else None
        savepoint = await on_connection(partial(self._begin_savepoint, ordinal))
        try:
            await self._source.in_part(session, lambda own: work(own, what))
        except Exception as error:
            if ends_transaction(error):
                raise
            await on_connection(partial(_roll_back, savepoint))
            if checks is not None:
                session.drop_checks(checks)
            return error
        if savepoint is not None:
            await on_connection(lambda _: savepoint.commit())
        return None

    def _begin_savepoint(self, ordinal: int, connection: Connection) -> NestedTransaction | None:
        if self._source.maker is not None:
            # SQLAlchemy's own savepoint: a failed flush rolls back the innermost savepoint that SQLAlchemy knows, or
            # the transaction if there is none.
            return connection.begin_nested()
        for statement in savepoint_before(ordinal, connection.dialect.name):
            connection.exec_driver_sql(statement)
        return None


def _roll_back(savepoint: NestedTransaction | None, connection: Connection) -> None:
    if savepoint is None:
        connection.exec_driver_sql(ROLL_BACK)
    else:
        savepoint.rollback()


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
        return is_transient(error)
    return isinstance(error, ConflictError | InfrastructureError | LifecycleError)


class _TransactionEnded(BaseException):
    """Carries the error that has ended the transaction of a search."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _positions(first_time: list[bool]) -> list[int]:
    return [position for position, is_first in enumerate(first_time) if is_first]


async def _require_nothing(work: Awaitable[object]) -> None:
    """Refuse exceptions that a batch handler returns: the effect of their messages is in the transaction."""
    result = await work
    if isinstance(result, list) and any(isinstance(one, Exception) for one in result):
        raise ConfigurationError(
            "a batch handler with a session returned exceptions, but its transaction holds the effects of all its "
            "messages: raise one of them. The batch is then rolled back and halved until the message is alone"
        )
