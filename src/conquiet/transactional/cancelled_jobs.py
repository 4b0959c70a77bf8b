"""Record cancelled jobs in the inbox, so that the database decides between a job's effect and its cancellation.

    effect       the message's inbox row, and the handler's statements
    cancelled    the message's inbox row, and the row of its cancellation

Each is one transaction that begins with the message's inbox row, so only one of them can be committed. That includes a
run that was presumed dead and commits late: it finds the row, or the cancellation finds its row.

See docs/decisions/0046.
"""

from collections.abc import Callable
from typing import Any

from conquiet.core.deduplicator import Deduplicator
from conquiet.core.functions import mark_cancellation
from conquiet.errors import JobCancelledError
from conquiet.transactional.inbox import Inbox
from conquiet.transactional.lease_check import LeaseCheck
from conquiet.transactional.session_source import AsyncSource, SyncSource

Received = Callable[[Any], Any]
"""Builds the inbox's message from a ``JobContext``."""


class InboxCancellation:
    """Records cancellations of one handler's jobs in its inbox.

    Args:
        source: The handler's database.
        inbox: Its inbox.
        received: Builds the inbox's message from the handler's context.
    """

    def __init__(self, source: SyncSource | AsyncSource, inbox: Inbox, received: Received) -> None:
        self._source = source
        self._inbox = inbox
        self._received = received

    def add_to(self, handle: Callable[..., Any]) -> None:
        """Mark a handler with the function that cancels its jobs."""
        mark_cancellation(handle, self._source.entry_point(self.mark))

    async def mark(self, ctx: Any) -> bool:
        """Record that the job is cancelled. False if its effect is committed. True if it was recorded now or before."""
        msg = self._received(ctx)
        key = self._inbox.rows.cancellation_key(msg)

        async def record(session: Any) -> None:
            await self._source.in_unit(session, lambda unit: self._inbox.rows.record(unit, key, None))

        return await self._source.effect_once(self._inbox, msg, record) or await self._is_marked(msg)

    async def raise_if_marked(self, ctx: Any) -> None:
        """Raise ``JobCancelledError`` if the inbox row that a run has found belongs to a cancellation."""
        if await self._is_marked(self._received(ctx)):
            raise JobCancelledError("the job was cancelled before this run", event=ctx.event, job_id=ctx.id)

    async def _is_marked(self, msg: Any) -> bool:
        key = self._inbox.rows.cancellation_key(msg)
        return await self._source.read(lambda unit: self._inbox.rows.has_row(unit, key))


def cancellable(
    source: SyncSource | AsyncSource, once: Deduplicator, received: Received, handler: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    """Return the handler of a job that runs ``handler(ctx, session)`` once, unless the job is cancelled."""
    inbox = once.inbox if isinstance(once, LeaseCheck) else once
    known = InboxCancellation(source, inbox, received) if isinstance(inbox, Inbox) else None

    async def handle(ctx: Any) -> object:
        returned: object = None

        async def work(session: Any) -> None:
            nonlocal returned
            returned = await source.call(handler, ctx, session)

        first_time = await source.effect_once(once, received(ctx), work)
        if not first_time and known is not None:
            await known.raise_if_marked(ctx)
        return returned

    entry_point = source.entry_point(handle)
    if known is not None:
        known.add_to(entry_point)
    return entry_point
