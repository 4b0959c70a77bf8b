"""What becomes of the messages of one batch: decided for each, run together. See ``execution`` for a single message.

    each: read the envelope ─▶ for this group? ─▶ due? ─▶ paused?
    the others: limiter? ─▶ run together ─▶ decide about each

Attempts are charged to messages that have failed alone; see ``core.batch_run``.

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
        execution: Decides about single messages, and about those that have failed.
        runners: Batch handlers by event.
        cancels: Knows which jobs are to be cancelled.
        pauses: Knows what is paused.
        jobs: Records the states of jobs, if they are kept.
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
        """See ``Batching``. The envelope is checked later: what is none has no event with a batch handler."""
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
            if isinstance(decision, Envelope) and not runs_at_once(message, decision):
                decision = await self._admit(message, decision, leases)
            if isinstance(decision, Envelope):
                admitted.append((decision, MessageContext(message, leases)))
            else:
                settlements[message] = decision
        if admitted:
            members = runner.contexts(admitted, self._execution.emitter)
            settlements |= await self._run_limited(runner, members, leases)
        return [settlements[message] for message in messages]

    def _runs_at_once(self, message: RuntimeMessage, envelope: Envelope) -> bool:
        """Return whether a message runs now, with no key, delay, cancellation or pause in its way.

        Nearly all do. Looking closer costs each of them four coroutines.
        """
        return (
            envelope.key is None
            and envelope.delay_until_ms is None
            and message.delivery_count == 1
            and not self._cancels.requested_in
            and not self._pauses.exist
        )

    def _ends_plainly(self, message: RuntimeMessage, envelope: Envelope) -> bool:
        """Return whether a message that has succeeded needs nothing more: no cancellation, result or state."""
        return not message.cancel_requested and envelope.keep_result_ms is None and self._jobs is None

    async def _admit(self, message: RuntimeMessage, envelope: Envelope, leases: LeaseManager) -> Envelope | Settlement:
        """Return the envelope of a message that is to be run, or what becomes of it."""
        admitted = await self._execution.admit(message, envelope)
        if not isinstance(admitted, Envelope):
            return admitted
        settled = await self._execution.cancelled(message, leases)
        if settled is None:
            settled = await self._execution.parked(message, admitted, leases)
        return admitted if settled is None else settled

    async def _run_limited(
        self, runner: BatchHandlerRunner, members: list[JobContext], leases: LeaseManager
    ) -> dict[RuntimeMessage, Settlement]:
        if runner.limiter is None:
            return await self._run(runner, members, leases)
        if not await runner.limiter.acquire():
            # We stop, and they have not started: to the end of the stream, for any other host.
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
            return KeepPending(outcome)  # of its new owner now; not a failed attempt
        if outcome is not None:
            return await self._execution.failed(message, member.envelope, runner, outcome)
        await self._execution.keep_result(message, member.envelope)
        await self._execution.record(message, member.envelope, JobState.SUCCEEDED, member.caused)
        _succeed(runner, message)
        return ACKNOWLEDGE


def _succeed(runner: BatchHandlerRunner, message: RuntimeMessage) -> None:
    runner.done[message.stream] += 1
    message.raw = b""  # it may wait for its acknowledgement a while, and is not needed again


def _linked(envelope: Envelope) -> tracing.BatchMember:
    return tracing.BatchMember(envelope.id, envelope.headers, envelope.first_attempt)


def _lost(member: JobContext) -> Outcome:
    return lost_lease(member.delivery)
