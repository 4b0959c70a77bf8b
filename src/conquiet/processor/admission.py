"""Decide whether a decoded message may run now. Shared by ``execution`` and ``batch_execution``.

    its key's turn? ─▶ due? ─▶ cancelled? ─▶ known event? ─▶ paused? ─▶ rate? ─▶ it may run
          │             │          │              │             │         │
        Moved         Defer      Moved     ``unknown_events``  Moved     Moved

Where only the server can decide (order by key, parking, the rate limit, a cancellation), the script that decides also
moves the message. The settlement is then ``Moved``: nothing is left to do.
"""

from conquiet.core.settlement import MOVED, Defer, Settlement
from conquiet.processor.cancellation import JobCanceller
from conquiet.processor.envelope import Envelope
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.policy import RateLimit
from conquiet.processor.settler import ProcessorSettler, Step
from conquiet.processor.unknown_events import UnknownEvents
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.message import RuntimeMessage


class Admission:
    """Admits messages to their handlers.

    Args:
        parts: The parts that a processor shares.
        canceller: Finds cancellation requests, and cancels jobs.
        settler: Parks messages, reserves starts under a rate limit, and appends messages to the queue of their key.
        unknown: Settles messages without a handler.

    Attributes:
        pauses: Paused streams and events. ``Execution`` skips ``admit`` while nothing is paused.
    """

    def __init__(
        self,
        parts: ProcessorParts,
        *,
        canceller: JobCanceller,
        settler: ProcessorSettler,
        unknown: UnknownEvents,
    ) -> None:
        self._clock, self.pauses = parts.clock, parts.pauses
        self._canceller = canceller
        self._settler = settler
        self._unknown = unknown

    def is_certain(self, message: RuntimeMessage, envelope: Envelope) -> bool:
        """Return True if ``admit`` would admit a message with a handler that has no rate limit.

        This is the fast path for nearly all messages: no key, delay, cancellation or pause needs to be checked.
        """
        return (
            envelope.key is None
            and envelope.delay_until_ms is None
            and message.delivery_count == 1
            and not self._canceller.requested_in
            and not self.pauses.exist
        )

    async def admit(
        self, message: RuntimeMessage, leases: LeaseManager, envelope: Envelope, runner: HandlerRunner | None
    ) -> Settlement | None:
        """Return the settlement of a message that does not run now; None if it runs. Without a runner it never runs."""
        if envelope.key is not None and not await self._has_turn(message, envelope):
            return MOVED
        if envelope.delay_until_ms is not None and envelope.delay_until_ms > self._clock.now_ms():
            return Defer(until_ms=envelope.delay_until_ms)
        if self._canceller.must_check(message) and await self._canceller.is_requested(message):
            return await self._canceller.cancel(message, leases)
        if runner is None:
            return await self._unknown.decide(message, envelope)
        step = Step.LEFT
        if self.pauses.is_event_paused(message.stream, envelope.event):
            step = await self._settler.park(message, envelope)
        if step is Step.LEFT and runner.rate is not None and not self._is_reserved(envelope, runner.rate):
            step = await self._settler.reserve_rate(message, envelope, runner.rate)
        if step is Step.TO_CANCEL:
            return await self._canceller.cancel(message, leases)
        return MOVED if step is Step.MOVED else None

    async def _has_turn(self, message: RuntimeMessage, envelope: Envelope) -> bool:
        """Return True if the message holds its key. A message not written by ``emit`` joins the queue of its key."""
        if envelope.ticket is None:
            await self._settler.join_key(message, envelope)
            return False
        self._settler.acknowledge_with_turn(message, envelope)
        return True

    def _is_reserved(self, envelope: Envelope, rate: RateLimit) -> bool:
        """Return True if a start is reserved. A missed reservation (a pause, all hosts down) has expired."""
        return envelope.reserved and not rate.has_expired(envelope.reserved_ms, now_ms=self._clock.now_ms())
