"""Run one message: a straight list of decisions. This is the executor of the engine.

    read the envelope ─▶ for this group? ─▶ may it run now? ─▶ limiter? ─▶ run ─▶ record ─▶ settlement
       (envelope_decoder)                     (admission)                     (attempt_recorder)

This module carries out no settlement. ``settler`` does, except where only the server can decide; see ``admission``.

See docs/decisions/0013.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from conquiet.core import causation, tracing
from conquiet.core.functions import reject_unawaited
from conquiet.core.settlement import ACKNOWLEDGE, DeadLetter, Defer, RetryLater, Settlement, settlement_name
from conquiet.core.worker_pool import current_worker, start_in_context
from conquiet.processor.admission import Admission
from conquiet.processor.attempt_recorder import AttemptRecorder
from conquiet.processor.cancellation import JobCanceller
from conquiet.processor.envelope import Envelope
from conquiet.processor.envelope_decoder import EnvelopeDecoder
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.settler import ProcessorSettler
from conquiet.runtime.batch import Batching
from conquiet.runtime.context import LeaseManager, MessageContext
from conquiet.runtime.executor import PendingSettlement, record_settlement
from conquiet.runtime.message import RuntimeMessage

Invoke = Callable[[RuntimeMessage, LeaseManager, Envelope, HandlerRunner], Coroutine[Any, Any, Settlement]]
"""Runs an admitted message, with a span or without."""


class Execution:
    """Runs messages for one host and returns their settlements.

    Args:
        runners: Handlers by event.
        decoder: Reads envelopes, and settles messages that have none.
        admission: Decides whether a message may run now.
        attempts: Records attempts, and decides the settlement of failed ones.
        settler: Carries settlements out.
        canceller: Cancels jobs.
        batching: Executes batches. None if no handler takes batches.
    """

    handles_malformed = True

    def __init__(
        self,
        *,
        runners: Mapping[str, HandlerRunner],
        decoder: EnvelopeDecoder,
        admission: Admission,
        attempts: AttemptRecorder,
        settler: ProcessorSettler,
        canceller: JobCanceller,
        batching: Batching | None,
    ) -> None:
        self._runners = runners
        self._decode, self._refuse = decoder.decode, decoder.refuse
        self.exhausted, self.malformed = decoder.exhausted, decoder.malformed
        self._admit, self._pauses = admission.admit, admission.pauses
        self._attempts, self._running = attempts, attempts.running
        self._keeps_states = attempts.jobs is not None
        self._settler = settler
        self._canceller = canceller
        self.batching = batching

    def execute(self, message: RuntimeMessage, leases: LeaseManager) -> PendingSettlement:
        """Run the handler of the message's event and return the settlement."""
        envelope = self._decode(message)
        if not isinstance(envelope, Envelope):
            return self._refuse(message, envelope)
        runner = self._runners.get(envelope.event)
        is_traced = tracing.active is not None and not tracing.active.covers(envelope.headers)
        run = self._invoke_traced if is_traced else self._invoke
        if (
            runner is None
            or runner.is_limited
            # ``Admission.is_certain``, without the call
            or envelope.key is not None
            or envelope.delay_until_ms is not None
            or message.delivery_count != 1
            or self._canceller.requested_in
            or self._pauses.exist
        ):
            return start_in_context(self._execute(message, leases, envelope, runner, run))
        return start_in_context(run(message, leases, envelope, runner))

    async def store(
        self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter, leases: LeaseManager
    ) -> Settlement | None:
        """Store a message, or cancel its job if that was requested; see ``Executor``."""
        settle = self._settler.settle if tracing.active is None else self._settle_traced
        if not await settle(message, settlement):
            return await self._canceller.cancel(message, leases)
        envelope: Envelope | None = message.decoded
        if envelope is None:
            return None
        if isinstance(settlement, DeadLetter):
            await self._attempts.dead(message, envelope, settlement)
        if settlement.failure is not None and (runner := self._runners.get(envelope.event)) is not None:
            runner.count(message.stream, "retry" if isinstance(settlement, RetryLater) else "dead")
        return None

    async def _settle_traced(self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter) -> bool:
        assert tracing.active is not None  # noqa: S101 - checked by the caller
        name = settlement_name(settlement)
        with tracing.active.settle("redis", message.stream, operation=name, message_id=message.id):
            return await self._settler.settle(message, settlement)

    async def _execute(
        self,
        message: RuntimeMessage,
        leases: LeaseManager,
        envelope: Envelope,
        runner: HandlerRunner | None,
        run: Invoke,
    ) -> Settlement:
        """Run a message that needs more checks than the fast path of ``execute``."""
        settled = await self._admit(message, leases, envelope, runner)
        if settled is not None:
            return settled
        assert runner is not None  # noqa: S101 - admitted
        if runner.limiter is None:
            return await run(message, leases, envelope, runner)
        if not await runner.limiter.acquire():
            return Defer()  # stopping before it started: moved to the end of the stream, for another host
        try:
            return await run(message, leases, envelope, runner)
        finally:
            runner.limiter.release()

    async def _invoke(
        self, message: RuntimeMessage, leases: LeaseManager, envelope: Envelope, runner: HandlerRunner
    ) -> Settlement:
        if self._keeps_states:
            await self._attempts.started(message, envelope)
        running = self._running
        running[message] = current_worker() if runner.is_async else None
        failure: Exception | None = None
        answer: object = None
        try:
            if (answer := await runner.invoke(envelope, MessageContext(message, leases))) is not None:
                reject_unawaited(answer)
        except asyncio.CancelledError as error:
            failure = self._canceller.explain(message, error)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            failure = error
        finally:
            del running[message]  # later requests no longer cancel the task
        if failure is None:
            # ``AttemptRecorder.must_record``, without the call
            if self._keeps_states or envelope.keep_result_ms is not None or message.cancel_requested:
                handling = causation.current()
                caused = None if handling is None else handling.caused
                await self._attempts.succeeded(message, envelope, answer, caused)
            runner.done[message.stream] += 1
            message.raw, message.decoded = b"", None  # free memory: the acknowledgement may take a while
            return ACKNOWLEDGE
        try:
            return await self._attempts.failed(message, leases, envelope, runner, failure)
        finally:
            # Its traceback refers to this frame: break the reference cycle.
            del failure

    async def _invoke_traced(
        self, message: RuntimeMessage, leases: LeaseManager, envelope: Envelope, runner: HandlerRunner
    ) -> Settlement:
        """Run the message in a span."""
        if tracing.active is None:  # removed since
            return await self._invoke(message, leases, envelope, runner)
        with tracing.active.process(
            "redis",
            message.stream,
            message_id=envelope.id,
            event=envelope.event,
            group=leases.group,
            attempt=envelope.attempt,
            headers=envelope.headers,
            first_attempt=envelope.first_attempt,
        ) as span:
            settlement = await self._invoke(message, leases, envelope, runner)
            record_settlement(span, message, settlement)
            if settlement.failure is not None and envelope.first_attempt is None:
                envelope.first_attempt = span.headers.get("traceparent")
            return settlement
