"""Run the messages of one batch together and settle each. ``execution`` runs single messages.

    each: read the envelope ─▶ for this group? ─▶ may it run now?
    the admitted: limiter? ─▶ run together ─▶ decide for each

An attempt is charged only to a message that failed alone; see ``core.batch_run``.

See docs/decisions/0044.
"""

from collections.abc import Mapping, Sequence

from conquiet.core import tracing
from conquiet.core.batch_run import BatchRun, Outcome
from conquiet.core.batching import BatchSettings
from conquiet.core.settlement import ACKNOWLEDGE, Defer, KeepPending, Settlement
from conquiet.errors import LeaseLostError
from conquiet.processor.admission import Admission
from conquiet.processor.attempt_recorder import AttemptRecorder
from conquiet.processor.batch_handler_runner import BatchHandlerRunner
from conquiet.processor.context import JobContext
from conquiet.processor.envelope import Envelope
from conquiet.processor.envelope_decoder import EnvelopeDecoder
from conquiet.runtime.context import LeaseManager, MessageContext, lost_lease
from conquiet.runtime.message import RuntimeMessage


class BatchExecution:
    """Executes batches for one host.

    Args:
        runners: Batch handlers by event.
        decoder: Reads envelopes, and settles messages that have none.
        admission: Decides whether a message may run now.
        attempts: Records attempts, and decides the settlement of failed ones.
    """

    def __init__(
        self,
        runners: Mapping[str, BatchHandlerRunner],
        *,
        decoder: EnvelopeDecoder,
        admission: Admission,
        attempts: AttemptRecorder,
    ) -> None:
        self._runners = runners
        self._decoder = decoder
        self._admission = admission
        self._attempts = attempts
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
        decode, is_certain = self._decoder.decode, self._admission.is_certain
        for message in messages:
            decoded = decode(message)
            if not isinstance(decoded, Envelope):
                settlements[message] = await self._decoder.refuse(message, decoded)
                continue
            settled: Settlement | None = None
            if not is_certain(message, decoded):
                settled = await self._admission.admit(message, leases, decoded, runner)
            if settled is None:
                admitted.append((decoded, MessageContext(message, leases)))
            else:
                settlements[message] = settled
        if admitted:
            settlements |= await self._run_limited(runner, runner.contexts(admitted), leases)
        return [settlements[message] for message in messages]

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
        attempts = self._attempts
        if attempts.jobs is not None:
            for member in members:
                await attempts.started(member.delivery.message, member.envelope)
        messages = [member.delivery.message for member in members]
        attempts.begin(messages)
        span = tracing.batch_span(
            "redis",
            messages[0].stream,
            lambda: [_linked(member.envelope) for member in members],
            event=members[0].envelope.event,
            group=leases.group,
        )
        try:
            with span:
                outcomes = await BatchRun(members, runner.invoke_batch, lost=_lost).run()
                tracing.record_batch(span, outcomes)
        except BaseException:
            attempts.abandon(messages)
            raise
        settlements: dict[RuntimeMessage, Settlement] = {}
        must_record, ended = attempts.must_record, attempts.running.pop
        for message, member, outcome in zip(messages, members, outcomes, strict=True):
            ended(message, None)
            if outcome is not None and member.envelope.first_attempt is None:
                member.envelope.first_attempt = span.headers.get("traceparent")
            if outcome is None and not must_record(message, member.envelope):
                _succeed(runner, message)
                settlements[message] = ACKNOWLEDGE
            else:
                settlements[message] = await self._decide(runner, member, outcome, leases)
        return settlements

    async def _decide(
        self, runner: BatchHandlerRunner, member: JobContext, outcome: Outcome, leases: LeaseManager
    ) -> Settlement:
        message = member.delivery.message
        if isinstance(outcome, LeaseLostError) and not message.cancel_requested:
            return KeepPending(outcome)  # it has a new owner; this is not a failed attempt
        if outcome is not None:
            return await self._attempts.failed(message, leases, member.envelope, runner, outcome)
        await self._attempts.succeeded(message, member.envelope, None, member.caused)
        _succeed(runner, message)
        return ACKNOWLEDGE


def _succeed(runner: BatchHandlerRunner, message: RuntimeMessage) -> None:
    runner.done[message.stream] += 1
    message.raw = b""  # free memory: the acknowledgement may take a while


def _linked(envelope: Envelope) -> tracing.BatchMember:
    return tracing.BatchMember(envelope.id, envelope.headers, envelope.first_attempt)


def _lost(member: JobContext) -> Outcome:
    return lost_lease(member.delivery)
