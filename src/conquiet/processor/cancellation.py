"""Cancel running jobs in the worker that runs them. Only that worker decides.

    operator ──▶ request in {stream}:cancel ──wake──▶ the worker that owns the entry
                                                        │ async def: its task is cancelled
                                                        │ plain function: ctx.cancelled is True
                            returns: job succeeded   ◀──┴──▶  raises: job cancelled

A request names an entry, not a job: entry ids are never reused, so a late request cannot hit another job. The steps
that move the entry elsewhere (retry, dead letter, park, rate limit) do nothing while there is a request, so a job
cannot escape it. If the worker is killed, the request stays, and the next owner of the entry finds it.

A job with a request is also cancelled before its next attempt. Waiting jobs are not handled here: ``management.jobs``
removes them with a script.

See docs/decisions/0046.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

from conquiet.core.log import FactLogger
from conquiet.core.settlement import MOVED, KeepPending, Release, Settlement
from conquiet.errors import InfrastructureError, JobCancelledError, MessageInProgressError
from conquiet.processor.delayed import Poll
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.jobs import JobState
from conquiet.processor.keys import Keys
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.policy import HandlerCancelledError
from conquiet.processor.results import CANCELLED, ResultWriter
from conquiet.processor.scripts import move, script
from conquiet.runtime.context import LeaseManager, MessageContext
from conquiet.runtime.message import RuntimeMessage

logger = FactLogger(__name__)

RECORD_KEPT_MS = 7 * 86_400_000
"""Retention of the record of a cancellation."""

_FINISHED = "finished"
"""Outcome of a request for a job that has succeeded. The other outcome is ``CANCELLED``."""

_CHUNK = 500
_SWEEP_EVERY_S = 1.0


class JobCanceller:
    """Finds cancellation requests for the jobs of this worker, decides whether a job was cancelled, and records it.

    Args:
        parts: The parts that a processor shares.
        runners: Handlers by event.
        results: Writes results of jobs that keep them.

    Attributes:
        running: Messages with a running handler, and the task to cancel; None for a plain function.
        requested_in: Streams with cancellation requests, as of the last poll.
    """

    def __init__(self, parts: ProcessorParts, runners: Mapping[str, HandlerRunner], *, results: ResultWriter) -> None:
        self._client, self._group, self._consumer_id = parts.client, parts.group, parts.consumer_id
        self._keys, self._jobs = parts.keys, parts.jobs
        self._runners = runners
        self._results = results
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

    async def is_requested(self, message: RuntimeMessage) -> bool:
        """Return whether cancellation of this message's job was requested."""
        return bool((await self._are_requested(self._keys[message.stream], [message]))[0])

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

    async def cancel(self, message: RuntimeMessage, leases: LeaseManager) -> Settlement:
        """Cancel the job. Committed effects are not undone.

        With a database, the database decides first: until then a worker that was presumed dead may commit the effect.
        """
        envelope: Envelope = message.decoded
        keys = self._keys[message.stream]
        runner = self._runners.get(envelope.event)
        outcome = CANCELLED
        if runner is not None:
            try:
                if not await runner.mark_cancelled(envelope, MessageContext(message, leases)):
                    outcome = _FINISHED
            except InfrastructureError as error:
                return Release(error)
            except MessageInProgressError as error:
                return KeepPending(error)
        if await self._settle(keys, message, outcome):
            await self._record(message, envelope, runner, outcome)
        return MOVED

    async def finish(self, keys: Keys, message: RuntimeMessage) -> None:
        """Record that a job succeeded despite a cancellation request."""
        envelope: Envelope = message.decoded
        names = (keys.cancel, keys.cancelled(envelope.id))
        args = (RECORD_KEPT_MS, f"{message.id} {self._group}", envelope.event)
        await script("cancel_finish").call(self._client, names, args, stream=keys.stream, group=self._group)

    async def _settle(self, keys: Keys, message: RuntimeMessage, outcome: str) -> bool:
        """Acknowledge a message and record the outcome of its cancellation, in one step. False if it was claimed.

        Raises:
            QueueError: The server returned an error or did not reply. The message and its request may still be pending.
        """
        envelope: Envelope = message.decoded
        names = (keys.stream, keys.cancel, keys.cancelled(envelope.id), keys.order)
        args = (self._group, self._consumer_id, message.id, outcome, envelope.event, RECORD_KEPT_MS)
        return bool(await move(self._client, message, "cancel_settle", names, args, group=self._group))

    async def _record(
        self, message: RuntimeMessage, envelope: Envelope, runner: HandlerRunner | None, outcome: str
    ) -> None:
        keys = self._keys[message.stream]
        if self._jobs is not None:
            state = JobState.CANCELLED if outcome == CANCELLED else JobState.SUCCEEDED
            await self._jobs.record(keys, envelope, state)
        if outcome == CANCELLED:
            await self._results.ended(keys, envelope, CANCELLED)
        if runner is not None:
            runner.count(message.stream, outcome)
        logger.info(
            "job %(job_id)s of event %(event_name)s %(outcome)s: it was to be cancelled, attempt %(attempt)s",
            job_id=envelope.id,
            event_name=envelope.event,
            outcome=outcome,
            attempt=envelope.attempt,
            stream=message.stream,
            message_id=message.id,
        )

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
