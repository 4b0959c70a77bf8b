"""Cancel running jobs in the worker that runs them. Only that worker decides.

    operator ──▶ request in {stream}:cancel ──wake──▶ the worker that owns the entry
                                                        │ async def: its task is cancelled
                                                        │ plain function: ctx.cancelled is True
                            returns: job succeeded   ◀──┴──▶  raises: job cancelled

A request names an entry, not a job: entry ids are never reused, so a late request cannot hit another job. The steps
that move the entry elsewhere (retry, dead letter, park, rate limit) do nothing while there is a request, so a job
cannot escape it. If the worker is killed, the request stays, and the next owner of the entry finds it.

Waiting jobs are not handled here: ``management.jobs`` removes them with a script.

See docs/decisions/0046.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from conquiet.errors import JobCancelledError
from conquiet.processor.delayed import Poll
from conquiet.processor.keys import Keys
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.policy import HandlerCancelledError
from conquiet.processor.scripts import move, script
from conquiet.runtime.message import RuntimeMessage

if TYPE_CHECKING:
    from conquiet.processor.envelope import Envelope

RECORD_KEPT_MS = 7 * 86_400_000
"""How long the record of a cancellation is kept."""

CANCELLED, FINISHED = "cancelled", "finished"
"""Outcomes of a cancellation request."""

_CHUNK = 500
_SWEEP_EVERY_S = 1.0


class CancelWatch:
    """Finds cancellation requests for the jobs of this worker.

    Args:
        parts: The parts that a processor shares.

    Attributes:
        running: Messages with a running handler, and the task to cancel; None for a plain function.
        requested_in: Streams with cancellation requests, as of the last poll.
    """

    def __init__(self, parts: ProcessorParts) -> None:
        self._client, self._group, self._consumer_id = parts.client, parts.group, parts.consumer_id
        self.requested_in: set[str] = set()
        self._cursors: dict[str, int] = {}
        self._swept_at: dict[str, float] = {}
        self.running: dict[RuntimeMessage, asyncio.Task[object] | None] = {}

    async def on_poll(self, keys: Keys, found: Poll) -> None:
        """Cancel running jobs that have a request. Costs nothing while there is no request."""
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
        """Return True if the server must be queried before this run: there are requests, or it was delivered before."""
        return message.delivery_count != 1 or message.stream in self.requested_in

    async def is_requested(self, keys: Keys, message: RuntimeMessage) -> bool:
        """Return whether cancellation of this message's job was requested."""
        return bool((await self._are_requested(keys, [message]))[0])

    def explain(self, message: RuntimeMessage, error: asyncio.CancelledError) -> Exception:
        """Return the failure of a cancelled handler. Re-raise the cancellation if it came from the engine."""
        task = asyncio.current_task()
        if task is None:
            raise error
        if message.cancel_requested:
            task.uncancel()
        if task.cancelling() > 0:
            raise error  # a forced stop: the work is not done, and the next owner runs it again
        failure: Exception = HandlerCancelledError()
        if message.cancel_requested:
            envelope: Envelope = message.decoded
            failure = JobCancelledError("the job was cancelled", event=envelope.event, job_id=envelope.id)
        failure.__cause__ = error
        return failure

    async def settle(self, keys: Keys, message: RuntimeMessage, *, outcome: str) -> bool:
        """Acknowledge a message and record the outcome of its cancellation, in one step. False if it was claimed.

        Raises:
            QueueError: The server returned an error or did not reply. The message and its request may still be pending.
        """
        envelope: Envelope = message.decoded
        names = (keys.stream, keys.cancel, keys.cancelled(envelope.id), keys.order)
        args = (self._group, self._consumer_id, message.id, outcome, envelope.event, RECORD_KEPT_MS)
        return bool(await move(self._client, message, "cancel_settle", names, args, group=self._group))

    async def finish(self, keys: Keys, message: RuntimeMessage) -> None:
        """Record that a job succeeded despite a cancellation request."""
        envelope: Envelope = message.decoded
        names = (keys.cancel, keys.cancelled(envelope.id))
        args = (RECORD_KEPT_MS, f"{message.id} {self._group}", envelope.event)
        await script("cancel_finish").call(self._client, names, args, stream=keys.stream, group=self._group)

    def _cancel(self, message: RuntimeMessage) -> None:
        if message not in self.running or message.cancel_requested:
            return  # it ended during the query
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
        """Remove some requests of acknowledged entries, about once a second: their jobs succeeded."""
        now = time.monotonic()
        if now - self._swept_at.get(keys.stream, 0.0) < _SWEEP_EVERY_S:
            return
        self._swept_at[keys.stream] = now
        args = (self._cursors.get(keys.stream, 0), _CHUNK, keys.cancelled(""), RECORD_KEPT_MS)
        following = await script("cancel_sweep").call(
            self._client, (keys.stream, keys.cancel), args, stream=keys.stream
        )
        self._cursors[keys.stream] = int(following)
