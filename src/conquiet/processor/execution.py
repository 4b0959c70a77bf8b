"""Run one message: a straight list of decisions. This is the executor of the engine.

    read the envelope ─▶ for this group? ─▶ due? ─▶ known event? ─▶ paused? ─▶ rate? ─▶ limiter? ─▶ run ─▶ decide
            │                  │              │          │            │          │          │
       DeadLetter         Acknowledge       Defer   see ``unknown``  Moved      Moved     Defer, if stopping

This module carries out no settlement, except where only the server can decide (parking, the rate limit): the script
that decides also moves the message. ``settler`` carries out all other settlements.

See docs/decisions/0013.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from conquiet.core import causation, tracing
from conquiet.core.functions import reject_unawaited
from conquiet.core.log import FactLogger
from conquiet.core.seen_ids import SeenIds
from conquiet.core.settlement import (
    ACKNOWLEDGE,
    MOVED,
    Acknowledge,
    DeadLetter,
    Defer,
    KeepPending,
    Release,
    RetryLater,
    Settlement,
    settlement_name,
)
from conquiet.core.worker_pool import current_worker, start_in_context
from conquiet.errors import InfrastructureError, JobCancelledError, MessageInProgressError
from conquiet.processor.batch_execution import BatchExecution
from conquiet.processor.batch_handler_runner import BatchHandlerRunner
from conquiet.processor.cancellation import CancelWatch
from conquiet.processor.emitter import Emitter
from conquiet.processor.envelope import Envelope, EnvelopeError, from_payload
from conquiet.processor.foreign import ForeignGuard
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.job_canceller import JobCanceller
from conquiet.processor.jobs import JobRecorder, JobState, Story
from conquiet.processor.keys import Keys
from conquiet.processor.pauses import Pauses
from conquiet.processor.policy import RateLimit, Reason, Reject, decide
from conquiet.processor.results import DEAD, ResultWriter
from conquiet.processor.server_clock import ServerClock
from conquiet.processor.settings import ProcessorSettings
from conquiet.processor.settler import ProcessorSettler, Step
from conquiet.processor.spans import TracedRun
from conquiet.processor.unknown import UNKNOWN_FATES, decide_unknown
from conquiet.runtime.context import LeaseManager, MessageContext
from conquiet.runtime.executor import PendingSettlement
from conquiet.runtime.message import RuntimeMessage

if TYPE_CHECKING:
    from conquiet.runtime.batch import Batching

logger = FactLogger(__name__)

_UNKNOWN = "no handler is registered for its event"
_EXHAUSTED = "it was delivered too often without being settled: the workers that ran it were killed or hung"


class Execution:
    """Runs messages for one host and returns their settlements.

    Args:
        group: The consumer group.
        runners: Handlers by event.
        keys: Keys by stream.
        pauses: Tracks paused streams and events.
        settler: Parks, reserves rates, and carries settlements out.
        emitter: For ``ctx.emit``.
        jobs: Records job states. None if they are not kept.
        settings: Settings of the processor.
        clock: The server's clock.
        cancels: Finds cancellation requests.
        results: Writes results of jobs that keep them.
        foreign: Settles undecodable entries.
    """

    handles_malformed = True

    def __init__(  # noqa: PLR0913 - assembled in one place
        self,
        *,
        group: str,
        runners: Mapping[str, HandlerRunner],
        keys: Mapping[str, Keys],
        pauses: Pauses,
        settler: ProcessorSettler,
        emitter: Emitter,
        jobs: JobRecorder | None,
        settings: ProcessorSettings,
        clock: ServerClock,
        cancels: CancelWatch,
        results: ResultWriter,
        foreign: ForeignGuard,
    ) -> None:
        self.group = group
        self._runners = runners
        self._keys = keys
        self._pauses = pauses
        self._settler = settler
        self.emitter = emitter
        self._jobs = jobs
        self._settings = settings
        self._clock = clock
        self._cancels = cancels
        self._results = results
        self._canceller = JobCanceller(
            keys=keys, runners=runners, emitter=emitter, cancels=cancels, jobs=jobs, results=results
        )
        self._foreign = foreign
        self._reported = SeenIds()
        batched = {event: runner for event, runner in runners.items() if isinstance(runner, BatchHandlerRunner)}
        self.batching: Batching | None = BatchExecution(self, batched, cancels, pauses, jobs) if batched else None
        self._traced = TracedRun(self._invoke, group)

    def execute(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """Run the handler of the message's event and return the settlement."""
        envelope = self.decode(message)
        if not isinstance(envelope, Envelope):
            return self.refuse(message, envelope)
        runner = self._runners.get(envelope.event)
        if (
            runner is None
            or runner.is_limited
            or envelope.key is not None
            or envelope.delay_until_ms is not None
            or message.delivery_count != 1
            or self._cancels.requested_in
            or self._pauses.exist
            or tracing.active is not None
        ):
            return start_in_context(self._execute(message, leases, envelope, runner))
        return start_in_context(self._invoke(message, leases, envelope, runner))

    def exhausted(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:  # noqa: ARG002
        """Dead-letter a message that was delivered too often: it kills the workers that run it."""
        try:
            message.decoded = envelope = from_payload(message.data, entry_id=message.id)
        except Exception:  # noqa: BLE001 - an undecodable message must be dead-lettered too
            envelope = None
        if envelope is not None and envelope.group not in {None, self.group}:
            return ACKNOWLEDGE  # another group's retry: a replay of a dead letter would deliver it to this group
        return DeadLetter(Reason.DELIVERIES_EXHAUSTED.value, note=_EXHAUSTED)

    def malformed(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:  # noqa: ARG002
        """Dead-letter the raw fields of an entry that is not JSON in one field ``data``."""
        return self._foreign.decide(message, DeadLetter(Reason.MALFORMED.value, note=message.malformed))

    async def store(
        self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter, leases: LeaseManager
    ) -> Settlement | None:
        """Store a message, or cancel its job if that was requested; see ``Executor``."""
        settle = self._settler.settle if tracing.active is None else self._settle_traced
        if not await settle(message, settlement):
            return await self._canceller.cancel(message, leases)
        if isinstance(settlement, DeadLetter) and message.decoded is not None:
            reason = type(settlement.failure).__name__ if settlement.failure is not None else settlement.reason
            await self._results.ended(self._keys[message.stream], message.decoded, DEAD, reason)
        runner = None if message.decoded is None else self._runners.get(message.decoded.event)
        if runner is not None and settlement.failure is not None:
            runner.count(message.stream, "retry" if isinstance(settlement, RetryLater) else "dead")
        return None

    async def _settle_traced(self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter) -> bool:
        assert tracing.active is not None  # noqa: S101 - checked by the caller
        name = settlement_name(settlement)
        with tracing.active.settle("redis", message.stream, operation=name, message_id=message.id):
            return await self._settler.settle(message, settlement)

    async def _execute(  # noqa: PLR0911 - one way out per decision
        self, message: RuntimeMessage, leases: LeaseManager, envelope: Envelope, runner: HandlerRunner | None
    ) -> Settlement:
        """Run a message that needs more checks than the fast path of ``execute``."""
        if (envelope.key is not None or envelope.delay_until_ms is not None) and (
            early := await self.too_early(message, envelope)
        ):
            return early
        if message.delivery_count != 1 or self._cancels.requested_in:
            cancelled = await self.cancelled(message, leases)
            if cancelled is not None:
                return cancelled
        if runner is None:
            return await self._unknown(message, envelope)
        if runner.rate is not None or (
            self._pauses.exist and self._pauses.is_event_paused(message.stream, envelope.event)
        ):
            step = await self._park_or_reserve(message, envelope, runner.rate)
            if step is not Step.LEFT:
                return MOVED if step is Step.MOVED else await self._canceller.cancel(message, leases)
        run = self._invoke if tracing.active is None else self._traced.choose(tracing.active, envelope)
        if runner.limiter is None:
            return await run(message, leases, envelope, runner)
        if not await runner.limiter.acquire():
            return Defer()  # stopping before it started: moved to the end of the stream, for another host
        try:
            return await run(message, leases, envelope, runner)
        finally:
            runner.limiter.release()

    def decode(self, message: RuntimeMessage) -> Envelope | Acknowledge | DeadLetter:
        """Return the envelope of a message. If it has none for this group, return the settlement for ``refuse``."""
        try:
            message.decoded = envelope = from_payload(message.data, entry_id=message.id)
        except EnvelopeError as error:
            return DeadLetter(Reason.NOT_AN_ENVELOPE.value, error, error.reason)
        if message.stream not in self._foreign.ours:
            self._foreign.accept(message.stream)
        if envelope.group is not None and envelope.group != self.group:
            return ACKNOWLEDGE  # another group's retry: this group has already settled the message
        return envelope

    async def refuse(self, message: RuntimeMessage, settlement: Acknowledge | DeadLetter) -> Settlement:
        """Return the settlement of a message that has no envelope for this group."""
        return settlement if isinstance(settlement, Acknowledge) else await self._foreign.decide(message, settlement)

    async def too_early(self, message: RuntimeMessage, envelope: Envelope) -> Settlement | None:
        """Return the settlement of a message that must wait for its key or its delay. None if it may run."""
        if envelope.key is not None and not await self._has_turn(message, envelope):
            return MOVED
        if envelope.delay_until_ms is not None and envelope.delay_until_ms > self._clock.now_ms():
            return Defer(until_ms=envelope.delay_until_ms)
        return None

    async def parked(self, message: RuntimeMessage, envelope: Envelope, leases: LeaseManager) -> Settlement | None:
        """Park a message if its event is paused. Return None if it may run."""
        if not self._pauses.is_event_paused(message.stream, envelope.event):
            return None
        step = await self._settler.park(message, envelope)
        if step is Step.TO_CANCEL:
            return await self._canceller.cancel(message, leases)
        return MOVED if step is Step.MOVED else None

    async def cancelled(self, message: RuntimeMessage, leases: LeaseManager) -> Settlement | None:
        """Cancel the job of a message if that was requested. Return None if it may run."""
        if self._cancels.must_check(message) and await self._cancels.is_requested(self._keys[message.stream], message):
            return await self._canceller.cancel(message, leases)
        return None

    def begin(self, messages: Sequence[RuntimeMessage]) -> None:
        """Record that messages of a batch run. A cancellation requested during a batch takes effect after it."""
        self._cancels.running.update(dict.fromkeys(messages))

    def abandon(self, messages: Sequence[RuntimeMessage]) -> None:
        """Record that messages of a batch no longer run, because the worker ends."""
        for message in messages:
            self._cancels.running.pop(message, None)

    async def end(self, message: RuntimeMessage, failure: Exception | None, leases: LeaseManager) -> Settlement | None:
        """Record the end of a message of a batch. Return its settlement if cancellation was requested."""
        self._cancels.running.pop(message, None)
        if failure is None:
            if message.cancel_requested:
                await self._cancels.finish(self._keys[message.stream], message)
            return None
        is_asked = message.cancel_requested or isinstance(failure, JobCancelledError)
        return await self._canceller.cancel(message, leases) if is_asked and not message.acknowledged else None

    async def keep_result(self, message: RuntimeMessage, envelope: Envelope) -> None:
        """Write the success of a message of a batch, without a value, if its result is kept."""
        if envelope.keep_result_ms is not None:
            await self._results.succeeded(self._keys[message.stream], envelope, None)

    async def record(
        self, message: RuntimeMessage, envelope: Envelope, state: JobState, caused: causation.Caused = None
    ) -> None:
        """Record the state of a message of a batch, if states are kept."""
        if self._jobs is None:
            return
        if state is JobState.SUCCEEDED:
            story = Story(envelope, duration_s=time.monotonic() - message.started_at, caused=caused)
            await self._jobs.record_soon(self._keys[message.stream], envelope, state, story)
        else:
            await self._jobs.record(self._keys[message.stream], envelope, state)

    async def _invoke(
        self, message: RuntimeMessage, leases: LeaseManager, envelope: Envelope, runner: HandlerRunner
    ) -> Settlement:
        if self._jobs is not None:
            await self._jobs.record(self._keys[message.stream], envelope, JobState.RUNNING)
        running = self._cancels.running
        running[message] = current_worker() if runner.is_async else None
        failure: Exception | None = None
        answer: object = None
        try:
            delivery = MessageContext(message, leases)
            if (answer := await runner.invoke(envelope, delivery, self.emitter, message.stream)) is not None:
                reject_unawaited(answer)
        except asyncio.CancelledError as error:
            failure = self._cancels.explain(message, error)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            failure = error
        finally:
            del running[message]  # later requests no longer cancel the task
        if failure is None:
            if message.cancel_requested:
                await self._cancels.finish(self._keys[message.stream], message)
            if envelope.keep_result_ms is not None:
                await self._results.succeeded(self._keys[message.stream], envelope, answer)
            if self._jobs is not None:
                handling = causation.current()
                caused = None if handling is None else handling.caused
                story = Story(envelope, duration_s=time.monotonic() - message.started_at, caused=caused)
                await self._jobs.record_soon(self._keys[message.stream], envelope, JobState.SUCCEEDED, story)
            runner.done[message.stream] += 1
            message.raw, message.decoded = b"", None  # free memory: the acknowledgement may take a while
            return ACKNOWLEDGE
        try:
            if (message.cancel_requested or isinstance(failure, JobCancelledError)) and not message.acknowledged:
                return await self._canceller.cancel(message, leases)
            return await self.failed(message, envelope, runner, failure)
        finally:
            # Its traceback refers to this frame: break the reference cycle.
            del failure

    async def failed(
        self, message: RuntimeMessage, envelope: Envelope, runner: HandlerRunner, failure: Exception
    ) -> Settlement:
        """Return the settlement of a message after a failed attempt."""
        state: JobState | None = None
        settlement: Settlement
        if message.acknowledged:
            # The handler acknowledged its message before it failed. There is nothing left to retry.
            runner.count(message.stream, "failed_after_ack")
            state, settlement = JobState.DEAD, KeepPending(failure)
        elif isinstance(failure, InfrastructureError):
            # Server unavailable: no attempt is charged. The engine releases the entry and pauses.
            state, settlement = JobState.WAITING, Release(failure)
        elif isinstance(failure, MessageInProgressError):
            # Another run of the message has not ended. If this one were charged, the message could be dead-lettered
            # while the other run commits.
            state, settlement = JobState.WAITING, KeepPending(failure)
        else:
            allowed = runner.attempts_of(envelope)
            settlement = decide(failure, attempt=envelope.attempt, policy=runner.retry, max_attempts=allowed)
        if self._jobs is not None and state is not None:
            await self._jobs.record(self._keys[message.stream], envelope, state, failure)
        return settlement

    async def _has_turn(self, message: RuntimeMessage, envelope: Envelope) -> bool:
        """Return True if the message holds its key. A message not written by ``emit`` joins the queue of its key."""
        if envelope.ticket is None:
            await self._settler.join_key(message, envelope)
            return False
        self._settler.acknowledge_with_turn(message, envelope)
        return True

    async def _unknown(self, message: RuntimeMessage, envelope: Envelope) -> Settlement:
        """Return the settlement of a message with an event that has no handler in this process."""
        settlement = decide_unknown(
            self._settings.unknown_on(message.stream),
            grace_s=self._settings.unknown_grace_s,
            since_ms=envelope.unknown_since_ms,
            now_ms=self._clock.now_ms(),
        )
        if self._reported.add(message.stream, envelope.event):  # once per event
            logger.warning(
                "no handler for event %(event_name)s of message %(message_id)s: %(fate)s. Known: %(known)s",
                event_name=envelope.event,
                message_id=message.id,
                fate=UNKNOWN_FATES[type(settlement)],
                known=", ".join(self._runners),
                stream=message.stream,
            )
        if settlement is ACKNOWLEDGE and self._jobs is not None:
            await self._jobs.record(self._keys[message.stream], envelope, JobState.DEAD)
        if isinstance(settlement, DeadLetter):
            return DeadLetter(settlement.reason, Reject(_UNKNOWN), _UNKNOWN)
        return settlement

    async def _park_or_reserve(self, message: RuntimeMessage, envelope: Envelope, rate: RateLimit | None) -> Step:
        """Return LEFT if the event is not paused and the rate limit allows the start now.

        A missed reservation (a pause, all hosts down) has expired.
        """
        if self._pauses.is_event_paused(message.stream, envelope.event):
            step = await self._settler.park(message, envelope)
            if step is not Step.LEFT:
                return step
        if rate is None:
            return Step.LEFT
        if envelope.reserved and not rate.has_expired(envelope.reserved_ms, now_ms=self._clock.now_ms()):
            return Step.LEFT
        return await self._settler.reserve_rate(message, envelope, rate)
