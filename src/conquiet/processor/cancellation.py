"""Cancels jobs that are running, for the worker that runs them. Only that worker decides.

    operator ──▶ request in {stream}:cancel ──wake──▶ the worker that has the entry
                                                        │ async def: its task is cancelled
                                                        │ plain function: ctx.cancelled is True
                         returns: it had its effect  ◀──┴──▶  raises: cancelled

A request names an entry, not a job: ids of entries are never used again, so a late request can hit no other job. The
steps that would move the entry elsewhere (retry, dead letter, park, rate limit) refuse while there is a request, so a
job cannot escape from it. A worker that dies leaves the request, and the next owner of the entry finds it.

Jobs that wait are not here: ``management.jobs`` removes them by a script.

See docs/decisions/0046.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from conquiet.errors import JobCancelledError
from conquiet.processor.delayed import Poll
from conquiet.processor.keys import Keys
from conquiet.processor.policy import HandlerCancelledError
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import AsyncClient
from conquiet.runtime.message import RuntimeMessage

if TYPE_CHECKING:
    from conquiet.processor.envelope import Envelope

RECORD_KEPT_MS = 7 * 86_400_000
"""How long it is known that a job was cancelled."""

CANCELLED, FINISHED = "cancelled", "finished"
"""How a request to cancel ends."""

_CHUNK = 500
_SWEEP_EVERY_S = 1.0


class CancelWatch:
    """Knows which jobs of this worker are to be cancelled.

    Args:
        client: A client without retries; it stays the caller's.
        group: The consumer group.
        consumer_id: The engine's name in it.

    Attributes:
        running: Messages whose handler runs, with the task to cancel; None for a plain function.
        requested_in: Streams that have jobs to cancel, as of the last poll.
    """

    def __init__(self, client: AsyncClient, *, group: str, consumer_id: str) -> None:
        self._client = client
        self._group = group
        self._consumer_id = consumer_id
        self.requested_in: set[str] = set()
        self._cursors: dict[str, int] = {}
        self._swept_at: dict[str, float] = {}
        self.running: dict[RuntimeMessage, asyncio.Task[object] | None] = {}

    async def on_poll(self, keys: Keys, found: Poll) -> None:
        """Cancel the running jobs that are to be cancelled. Costs nothing while there is no request."""
        if not found.cancel_requests:
            self.requested_in.discard(keys.stream)
            return
        self.requested_in.add(keys.stream)
        mine = [one for one in self.running if one.stream == keys.stream and not one.cancel_requested]
        for start in range(0, len(mine), _CHUNK):
            chunk = mine[start : start + _CHUNK]
            for message, requested in zip(chunk, await self._are_requested(keys, chunk), strict=True):
                if requested:
                    self._cancel(message)
        await self._sweep(keys)

    def must_check(self, message: RuntimeMessage) -> bool:
        """True if the server has to be asked before this message is run: there are requests, or it was run before."""
        return message.delivery_count != 1 or message.stream in self.requested_in

    async def is_requested(self, keys: Keys, message: RuntimeMessage) -> bool:
        """Return whether the job of this message is to be cancelled."""
        return bool((await self._are_requested(keys, [message]))[0])

    def explain(self, message: RuntimeMessage, error: asyncio.CancelledError) -> Exception:
        """Return what a cancelled handler has failed with; raise the cancellation again if it is the engine's."""
        task = asyncio.current_task()
        if task is None:
            raise error
        if message.cancel_requested:
            task.uncancel()
        if task.cancelling() > 0:
            raise error  # by a forced stop. It is not done, and the next owner runs it again
        failure: Exception = HandlerCancelledError()
        if message.cancel_requested:
            envelope: Envelope = message.decoded
            failure = JobCancelledError("the job was cancelled", event=envelope.event, job_id=envelope.id)
        failure.__cause__ = error
        return failure

    async def settle(self, keys: Keys, message: RuntimeMessage, *, outcome: str) -> bool:
        """Acknowledge a message and record how its cancellation ended, in one step. False if it is not ours any more.

        Raises:
            QueueError: The server refused or did not answer. The message may still be pending, and the request stands.
        """
        envelope: Envelope = message.decoded
        with message.settling():
            ours = await script("cancel_settle").call(
                self._client,
                (keys.stream, keys.cancel, keys.cancelled(envelope.id), keys.order),
                (self._group, self._consumer_id, message.id, outcome, envelope.event, RECORD_KEPT_MS),
                stream=keys.stream,
                group=self._group,
            )
            message.mark_acknowledged()
        return bool(ours)

    async def finish(self, keys: Keys, message: RuntimeMessage) -> None:
        """Record that a job had its effect although it was to be cancelled."""
        envelope: Envelope = message.decoded
        names = (keys.cancel, keys.cancelled(envelope.id))
        args = (RECORD_KEPT_MS, f"{message.id} {self._group}", envelope.event)
        await script("cancel_finish").call(self._client, names, args, stream=keys.stream, group=self._group)

    def _cancel(self, message: RuntimeMessage) -> None:
        if message not in self.running or message.cancel_requested:
            return  # it ended while the server was asked
        message.cancel_requested = True
        task = self.running[message]
        if task is not None:
            task.cancel()

    async def _are_requested(self, keys: Keys, messages: Sequence[RuntimeMessage]) -> Sequence[int]:
        fields = [f"{message.id} {self._group}" for message in messages]
        answer: Sequence[int] = await script("cancel_requested").call(
            self._client, (keys.cancel,), fields, stream=keys.stream, group=self._group
        )
        return answer

    async def _sweep(self, keys: Keys) -> None:
        """Remove some requests whose entries have been acknowledged, about once a second."""
        now = time.monotonic()
        if now - self._swept_at.get(keys.stream, 0.0) < _SWEEP_EVERY_S:
            return
        self._swept_at[keys.stream] = now
        cursor = self._cursors.get(keys.stream, 0)
        following = await sweep(self._client, keys, cursor)
        self._cursors[keys.stream] = following


async def sweep(client: AsyncClient, keys: Keys, cursor: int = 0, *, count: int = _CHUNK) -> int:
    """Remove requests whose entries were acknowledged: their jobs had their effect. Returns a cursor, 0 at the end."""
    args = (cursor, count, keys.cancelled(""), RECORD_KEPT_MS)
    following = await script("cancel_sweep").call(client, (keys.stream, keys.cancel), args, stream=keys.stream)
    return int(following)
