"""Record cancelled jobs in the inbox, so that the database decides between a job's effect and its cancellation.

    effect       the message's inbox row, and the handler's statements
    cancelled    the message's inbox row, and the row of its cancellation

Each is one transaction that begins with the message's inbox row, so only one of them can be committed. That includes a
run that was presumed dead and commits late: it finds the row, or the cancellation finds its row.

See docs/decisions/0046.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from conquiet.core.deduplicator import Deduplicator
from conquiet.core.functions import mark_cancellation
from conquiet.errors import JobCancelledError
from conquiet.transactional.inbox import Inbox
from conquiet.transactional.lease_check import LeaseCheck
from conquiet.transactional.session_source import AsyncSource, SyncSource
from conquiet.transactional.unit_of_work import run_in, unit_of

if TYPE_CHECKING:
    from conquiet.processor.context import JobContext, SyncJobContext

Received = Callable[[Any], Any]
"""Builds the inbox's message from a ``JobContext``."""


class SyncCancellation:
    """Records cancellations of one handler's jobs in its inbox, on a synchronous engine.

    Args:
        source: The handler's database.
        inbox: Its inbox.
        received: Builds the inbox's message from the handler's context.
    """

    def __init__(self, source: SyncSource, inbox: Inbox, received: Received) -> None:
        self._source = source
        self._inbox = inbox
        self._received = received

    def mark(self, ctx: Any) -> bool:
        """Record that the job is cancelled. False if its effect is committed. True if it was recorded now or before."""
        msg = self._received(ctx)
        key = self._inbox.cancellation_key(msg)

        def record(session: Any) -> None:
            self._inbox.record(session, key)

        return self._source.effect_once(self._inbox, msg, record) or self._is_marked(msg)

    def raise_if_marked(self, ctx: Any) -> None:
        """Raise ``JobCancelledError`` if the inbox row that a run has found belongs to a cancellation."""
        if self._is_marked(self._received(ctx)):
            raise _cancelled(ctx)

    def _is_marked(self, msg: Any) -> bool:
        key = self._inbox.cancellation_key(msg)
        return self._source.read(lambda session: self._inbox.has_row(unit_of(session), key))


class AsyncCancellation:
    """Does what ``SyncCancellation`` does, on an asynchronous engine."""

    def __init__(self, source: AsyncSource, inbox: Inbox, received: Received) -> None:
        self._source = source
        self._inbox = inbox
        self._received = received

    async def mark(self, ctx: Any) -> bool:
        """See ``SyncCancellation.mark``."""
        msg = self._received(ctx)
        key = self._inbox.cancellation_key(msg)

        async def record(session: Any) -> None:
            await self._inbox.record_async(session, key)

        return await self._source.effect_once(self._inbox, msg, record) or await self._is_marked(msg)

    async def raise_if_marked(self, ctx: Any) -> None:
        """See ``SyncCancellation.raise_if_marked``."""
        if await self._is_marked(self._received(ctx)):
            raise _cancelled(ctx)

    async def _is_marked(self, msg: Any) -> bool:
        key = self._inbox.cancellation_key(msg)
        return await self._source.read(lambda session: run_in(session, lambda unit: self._inbox.has_row(unit, key)))


def cancellable(
    source: SyncSource, once: Deduplicator, received: Received, handler: Callable[[Any, Any], Any]
) -> "Callable[[SyncJobContext], object]":
    """Return the handler of a job that runs ``handler(ctx, session)`` once, unless the job is cancelled."""
    inbox = once.inbox if isinstance(once, LeaseCheck) else once
    known = SyncCancellation(source, inbox, received) if isinstance(inbox, Inbox) else None

    def handle(ctx: "SyncJobContext") -> object:
        returned: list[object] = []

        def work(session: Any) -> object:
            returned.append(handler(ctx, session))
            return returned[0]

        first_time = source.effect_once(once, received(ctx), work)
        if not first_time and known is not None:
            known.raise_if_marked(ctx)
        return returned[0] if returned else None

    if known is not None:
        mark_cancellation(handle, known.mark)
    return handle


def cancellable_async(
    source: AsyncSource, once: Any, received: Received, handler: Callable[[Any, Any], Awaitable[object]]
) -> "Callable[[JobContext], Awaitable[object]]":
    """Do what ``cancellable`` does, on an asynchronous engine."""
    known = AsyncCancellation(source, once, received) if isinstance(once, Inbox) else None

    async def handle_async(ctx: "JobContext") -> object:
        returned: object = None

        async def work(session: Any) -> object:
            nonlocal returned
            returned = await handler(ctx, session)
            return returned

        first_time = await source.effect_once(once, received(ctx), work)
        if not first_time and known is not None:
            await known.raise_if_marked(ctx)
        return returned

    if known is not None:
        mark_cancellation(handle_async, known.mark)
    return handle_async


def _cancelled(ctx: Any) -> JobCancelledError:
    return JobCancelledError("the job was cancelled before this run", event=ctx.event, job_id=ctx.id)
