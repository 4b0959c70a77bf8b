"""Run the messages of one batch together and settle each. ``execution`` runs single messages.

    each: read the envelope ─▶ for this group? ─▶ due? ─▶ paused?
    the admitted: limiter? ─▶ run together ─▶ decide for each

An attempt is charged only to a message that failed alone; see ``core.batch_run``.

See docs/decisions/0044.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from conquiet.core import tracing
from conquiet.core.batch_run import BatchRun, Outcome
from conquiet.core.batching import BatchSettings
from conquiet.core.settlement import ACKNOWLEDGE, Defer, KeepPending, Settlement
from conquiet.errors import LeaseLostError
from conquiet.processor.batch_handler_runner import BatchHandlerRunner
from conquiet.processor.cancellation import CancelWatch
from conquiet.processor.context import JobContext
from conquiet.processor.envelope import Envelope
from conquiet.processor.jobs import JobRecorder, JobState
from conquiet.processor.pauses import Pauses
from conquiet.runtime.batch_executor import lost_lease
from conquiet.runtime.context import LeaseManager, MessageContext
from conquiet.runtime.message import RuntimeMessage

if TYPE_CHECKING:
    from conquiet.processor.execution import Execution


class BatchExecution:
    """Executes batches for one host.

    Args:
        execution: Settles single messages and failed messages.
        runners: Batch handlers by event.
        cancels: Tracks cancellation requests.
        pauses: Tracks paused streams and events.
        jobs: Records job states. None if they are not kept.
    """

    def __init__(
        self,
        execution: "Execution",
        runners: Mapping[str, BatchHandlerRunner],
        cancels: CancelWatch,
        pauses: Pauses,
        jobs: JobRecorder | None,
    ) -> None:
        self._cancels = cancels
        self._pauses = pauses
        self._jobs = jobs
        self._execution = execution
        self._runners = runners
        self._found = {event: (event, runner.batch) for event, runner in runners.items()}
        self.largest = max(runner.batch.size for runner in runners.values())

    def find(self, message: RuntimeMessage) -> tuple[str, BatchSettings] | None:
        """See ``Batching``. The envelope is validated later: a malformed entry has no event with a batch handler."""
        event = message.data.get("event")
        return self._found.get(event) if type(event) is str else None

    async def execute_batch(
        self, key: str, messages: Sequence[RuntimeMessage], leases: LeaseManager
    ) -> Sequence[Settlement]:
        """See ``Batching``."""
        runner = self._runners[key]
        settlements: dict[RuntimeMessage, Settlement] = {}
        admitted: list[tuple[Envelope, MessageContext]] = []
        decode, runs_at_once = self._execution.decode, self._runs_at_once
        for message in messages:
            decision = decode(message)
            if not isinstance(decision, Envelope):
                settlements[message] = await self._execution.refuse(message, decision)
                continue
            settled = None if runs_at_once(message, decision) else await self._settled_early(message, decision, leases)
            if settled is None:
                admitted.append((decision, MessageContext(message, leases)))
            else:
                settlements[message] = settled
        if admitted:
            members = runner.contexts(admitted, self._execution.emitter)
            settlements |= await self._run_limited(runner, members, leases)
        return [settlements[message] for message in messages]

    def _runs_at_once(self, message: RuntimeMessage, envelope: Envelope) -> bool:
        """Return True if no key, delay, cancellation or pause needs to be checked.

        This is the fast path for nearly all messages. The full check costs four coroutines per message.
        """
        return (
            envelope.key is None
            and envelope.delay_until_ms is None
            and message.delivery_count == 1
            and not self._cancels.requested_in
            and not self._pauses.exist
        )

    def _ends_plainly(self, message: RuntimeMessage, envelope: Envelope) -> bool:
        """Return True if a successful message needs no cancellation, result or state to be written."""
        return not message.cancel_requested and envelope.keep_result_ms is None and self._jobs is None

    async def _settled_early(
        self, message: RuntimeMessage, envelope: Envelope, leases: LeaseManager
    ) -> Settlement | None:
        """Return the settlement of a message that does not run now; None if it runs."""
        return (
            await self._execution.too_early(message, envelope)
            or await self._execution.cancelled(message, leases)
            or await self._execution.parked(message, envelope, leases)
        )

    async def _run_limited(
        self, runner: BatchHandlerRunner, members: list[JobContext], leases: LeaseManager
    ) -> dict[RuntimeMessage, Settlement]:
        if runner.limiter is None:
            return await self._run(runner, members, leases)
        if not await runner.limiter.acquire():
            # The worker is stopping and they have not started: move them to the end of the stream, for another host.
            return {member.delivery.message: Defer() for member in members}
        try:
            return await self._run(runner, members, leases)
        finally:
            runner.limiter.release()

    async def _run(
        self, runner: BatchHandlerRunner, members: list[JobContext], leases: LeaseManager
    ) -> dict[RuntimeMessage, Settlement]:
        if self._jobs is not None:
            for member in members:
                await self._execution.record(member.delivery.message, member.envelope, JobState.RUNNING)
        call = partial(runner.invoke_batch, stream=members[0].delivery.stream)
        messages = [member.delivery.message for member in members]
        self._execution.begin(messages)
        span = tracing.BatchSpan(
            "redis",
            messages[0].stream,
            lambda: [_linked(member.envelope) for member in members],
            event=members[0].envelope.event,
            group=self._execution.group,
        )
        try:
            with span:
                outcomes = await BatchRun(members, call, lost=_lost).run()
                span.record(outcomes)
        except BaseException:
            self._execution.abandon(messages)
            raise
        for member, outcome in zip(members, outcomes, strict=True):
            if outcome is not None and member.envelope.first_attempt is None:
                member.envelope.first_attempt = span.context
        settlements: dict[RuntimeMessage, Settlement] = {}
        ends_plainly, stop_watching = self._ends_plainly, self._cancels.running.pop
        for message, member, outcome in zip(messages, members, outcomes, strict=True):
            if outcome is None and ends_plainly(message, member.envelope):
                stop_watching(message, None)
                _succeed(runner, message)
                settlements[message] = ACKNOWLEDGE
            else:
                settlements[message] = await self._decide(runner, member, outcome, leases)
        return settlements

    async def _decide(
        self, runner: BatchHandlerRunner, member: JobContext, outcome: Outcome, leases: LeaseManager
    ) -> Settlement:
        message = member.delivery.message
        cancelled = await self._execution.end(message, outcome, leases)
        if cancelled is not None:
            return cancelled
        if isinstance(outcome, LeaseLostError):
            return KeepPending(outcome)  # it has a new owner; this is not a failed attempt
        if outcome is not None:
            return await self._execution.failed(message, member.envelope, runner, outcome)
        await self._execution.keep_result(message, member.envelope)
        await self._execution.record(message, member.envelope, JobState.SUCCEEDED, member.caused)
        _succeed(runner, message)
        return ACKNOWLEDGE


def _succeed(runner: BatchHandlerRunner, message: RuntimeMessage) -> None:
    runner.done[message.stream] += 1
    message.raw = b""  # free memory: the acknowledgement may take a while


def _linked(envelope: Envelope) -> tracing.BatchMember:
    return tracing.BatchMember(envelope.id, envelope.headers, envelope.first_attempt)


def _lost(member: JobContext) -> Outcome:
    return lost_lease(member.delivery)
