"""One message, from its worker to its settlement.

lease still ours? ─▶ no message? delivered too often? ─▶ charge ─▶ execute ─▶ settle ─▶ report
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from conquiet.core.log import FactLogger
from conquiet.core.seen_ids import SeenIds
from conquiet.core.settlement import ACKNOWLEDGE, DeadLetter, KeepPending, Release, RetryLater, Settlement
from conquiet.errors import DeliveriesExhaustedError, InfrastructureError
from conquiet.metrics.registry import RUNTIME_EXHAUSTED_TOTAL
from conquiet.metrics.safety import count
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.engine_events import EngineError, EventDispatcher, Failed, Started, Succeeded
from conquiet.runtime.executor import ENDS, Executor, PendingSettlement
from conquiet.runtime.lease import LeaseTable, lease_lost
from conquiet.runtime.message import Charge, HandlerState, Ownership, RuntimeMessage
from conquiet.runtime.metrics import StreamStats
from conquiet.runtime.outage import OutagePause
from conquiet.runtime.settings import RuntimeSettings
from conquiet.runtime.settler import Settler

logger = FactLogger(__name__)

_WEIGHT = 0.05

# Looked up once: in Python 3.11 every access to a member of an enum class costs as much as a function call.
_RUNNING, _SUCCEEDED, _FAILED = HandlerState.RUNNING, HandlerState.SUCCEEDED, HandlerState.FAILED
_HELD = Ownership.HELD

_FAILED_TEXT = (
    "handler failed for message %(message_id)s of %(stream)s, delivery %(deliveries)s, delivered again once it is idle "
    "for %(next_try_s)s s"
)
_FAILED_TEXT_OF_MOST = _FAILED_TEXT.replace("%(deliveries)s", "%(deliveries)s of %(max_deliveries)s")


class Pace:
    """How fast handlers are, for the decision how much to prefetch.

    Attributes:
        average_s: Moving average of the handling time. Until the first message has ended it is long: nothing is
            prefetched.
        last_end: When a handler last ended, on the monotonic clock.
    """

    __slots__ = ("average_s", "last_end")

    def __init__(self) -> None:
        self.average_s = 1_000.0
        self.last_end = time.monotonic()

    def record(self, began: float) -> float:
        """Note that a handler has ended now; return how long it took."""
        self.last_end = now = time.monotonic()
        duration_s = now - began
        average_s = self.average_s
        self.average_s = duration_s if average_s == 1_000.0 else average_s + _WEIGHT * (duration_s - average_s)  # noqa: PLR2004
        return duration_s

    def record_many(self, began: float, number: int) -> float:
        """Note that so many handlers have ended now, which began together; return how long they took."""
        duration_s = self.record(began)
        rest = (1.0 - _WEIGHT) ** (number - 1)
        self.average_s = duration_s + rest * (self.average_s - duration_s)
        return duration_s


class Runner:
    """What a worker does with a message.

    Args:
        executor: Decides what becomes of it.
        settler: Carries that out.
        leases: The engine, for contexts and for checks of an old lease.
        charge: Counts a delivery on the server; False if the message belongs to another consumer.
        flush: Returns when all acknowledgements are confirmed.
        table: Messages whose lease is kept.
        dispatcher: Notified of results.
        stats: Counts by stream.
        settings: Limits.
        outage: Notified of results; what is not started while it is paused is released.
        pace: Notified of handling times.
    """

    def __init__(  # noqa: PLR0913 - assembled in one place
        self,
        executor: Executor,
        *,
        settler: Settler,
        leases: LeaseManager,
        charge: Callable[[RuntimeMessage], Awaitable[bool]],
        flush: Callable[[], Awaitable[None]],
        table: LeaseTable,
        dispatcher: EventDispatcher,
        stats: Mapping[str, StreamStats],
        settings: RuntimeSettings,
        outage: OutagePause,
        pace: Pace,
    ) -> None:
        self._executor = executor
        self._execute = executor.execute
        self._acknowledge = settler.acknowledge
        self._settler = settler
        self._leases = leases
        self._charge = charge
        self._flush = flush
        self._table = table
        self._dispatcher = dispatcher
        self._stats = stats
        self._cap = settings.max_deliveries
        self._claim_idle_s = settings.claim_idle_s
        self._log_tracebacks = settings.log_tracebacks
        self._outage = outage
        self._record_pace = pace.record
        self._record_pace_of_many = pace.record_many
        self._reported = SeenIds()

    async def __call__(self, message: RuntimeMessage) -> None:  # noqa: C901 - the hot path, in one coroutine
        """Handle one message and settle it. Raises nothing but a cancellation or an end of the process."""
        began = time.monotonic()
        if (
            message.delivery_count != 1
            or began - message.leased_at > self._claim_idle_s
            or message.ownership is not _HELD
            or message.malformed
            or self._outage.is_on
        ):
            if not await self.admit(message, began):
                return
            began = time.monotonic()
        if message.delivery_count == 1:
            waited_s = time.time() - int(message.id.partition("-")[0]) / 1000
            # Clocks differ. Not max(): its call costs as much as all the rest.
            self._stats[message.stream].wait_s.append(waited_s if waited_s > 0.0 else 0.0)  # noqa: FURB136
        message.started_at = began
        message.progress = _RUNNING
        subscribed = self._dispatcher.subscribed
        if Started in subscribed:
            self._dispatcher.emit(Started(message))
        try:
            settlement = self._execute(message, self._leases)
            if settlement is not ACKNOWLEDGE and not isinstance(settlement, Settlement):
                settlement = await settlement
        except ENDS as error:
            # Cancelled by a forced stop, or by the handler itself, or the process is to end. The work is not done.
            self.fail(message, error, began)
            self._table.release(message)
            raise
        except BaseException as error:  # noqa: BLE001 - a defect of an executor: the worker lives on
            settlement = KeepPending(error)
        if settlement is ACKNOWLEDGE and message.ownership is _HELD:
            self._acknowledge(message)
            self.succeed(message, began)
        elif type(settlement) is KeepPending and settlement.failure is not None:
            # The most frequent failure, without another coroutine.
            self._settler.keep_pending(message, settlement)
            self.fail(message, settlement.failure, began)
        else:
            await self.settle(message, settlement, began)
        if self._outage.is_on and not isinstance(settlement, Release):
            self._outage.record_result(started_at=began)
        # The traceback of a failure refers to this frame. Without this line each failure is a cycle that only the
        # garbage collector finds, which costs more than the whole failure.
        del settlement
        if subscribed and self._dispatcher.is_full:
            await self._dispatcher.wait_below_limit()

    async def admit(self, message: RuntimeMessage, now: float) -> bool:
        """Return True if the message is to be run; otherwise it is settled by then."""
        if self._outage.is_paused:
            await self._settler.settle(message, Release())
            return False
        if now - message.leased_at > self._claim_idle_s or message.lease_lost:
            # It waited for a worker for too long, or the process was stopped: another consumer may be running it.
            if not await self._is_ours(message, self._leases.extend):
                return False
            now = time.monotonic()
        message.started_at = now
        if message.malformed:
            await self._decide(message, self._executor.malformed, is_first=True)
            return False
        if self._cap is not None and message.delivery_count > self._cap:
            is_first = self._reported.add(message.stream, message.id)  # it comes again with every claim
            count(RUNTIME_EXHAUSTED_TOTAL, message.stream, n=int(is_first))
            await self._decide(message, self._executor.exhausted, is_first=is_first)
            return False
        if message.charge is Charge.AT_START_ALONE:
            # It may kill the process: an unsent acknowledgement would be lost, and its message charged once more.
            await self._flush()
        return message.charge is Charge.COUNTED or await self._is_ours(message, self._charge)

    async def _is_ours(self, message: RuntimeMessage, call: Callable[[RuntimeMessage], Awaitable[bool]]) -> bool:
        """Make a call that succeeds only while the message is ours; let go of the message if it does not."""
        try:
            if not message.lease_lost and await call(message):
                return True
        except Exception as error:  # noqa: BLE001 - not known to be ours counts as lost: it stays pending
            self._dispatcher.emit(EngineError(error, message))
        message.progress = _FAILED
        message.lose()
        self._table.release(message)
        return False

    async def _decide(
        self,
        message: RuntimeMessage,
        decide: Callable[[RuntimeMessage, LeaseManager], PendingSettlement],
        *,
        is_first: bool,
    ) -> None:
        """Settle a message that is not run."""
        failure: BaseException | None = None
        try:
            settlement = decide(message, self._leases)
            if not isinstance(settlement, Settlement):
                settlement = await settlement
            failure = settlement.failure
            message.progress = _FAILED
            await self._settler.settle(message, settlement)
        except ENDS as error:
            failure = error
            raise
        except BaseException as error:  # noqa: BLE001 - the worker lives on, and the message stays pending
            failure = error
        finally:
            message.progress = _FAILED
            if failure is not None:
                self._table.release(message)
                if is_first or not isinstance(failure, DeliveriesExhaustedError):
                    self._dispatcher.emit(EngineError(failure, message))

    async def settle(self, message: RuntimeMessage, settlement: Settlement, began: float) -> None:
        """Carry out anything but a plain success, then report it."""
        failure = settlement.failure
        if failure is None and message.lease_lost:
            # Done here, but another consumer owns it and settles it: acknowledging for that one would hide a run
            # that may fail, and the fence belongs to the transaction.
            failure = lease_lost(message)
            settlement = KeepPending(failure)
        message.progress = _SUCCEEDED if failure is None else _FAILED
        try:
            await self._settler.settle(message, settlement)
        except asyncio.CancelledError as error:
            self.fail(message, failure or error, began)
            raise
        except Exception as error:  # noqa: BLE001 - the server refuses: the message stays pending
            failure = error
        if failure is None:
            self.succeed(message, began)
        else:
            stored = isinstance(settlement, RetryLater | DeadLetter) and settlement.failure is failure
            self.fail(message, failure, began, is_logged=stored)

    def succeed(self, message: RuntimeMessage, began: float) -> None:
        """Count and report a success."""
        duration_s = self._record_pace(began)
        stats = self._stats[message.stream]
        stats.succeeded += 1
        stats.handling_s.append(duration_s)
        message.progress = _SUCCEEDED
        if Succeeded in self._dispatcher.subscribed:
            self._dispatcher.emit(Succeeded(message, duration_s))

    def succeed_together(self, messages: Sequence[RuntimeMessage], began: float) -> None:
        """Count and report the successes of one call."""
        duration_s = self._record_pace_of_many(began, len(messages))
        is_wanted = Succeeded in self._dispatcher.subscribed
        for message in messages:
            stats = self._stats[message.stream]
            stats.succeeded += 1
            stats.handling_s.append(duration_s)
            message.progress = _SUCCEEDED
            if is_wanted:
                self._dispatcher.emit(Succeeded(message, duration_s))

    def fail(self, message: RuntimeMessage, error: BaseException, began: float, *, is_logged: bool = False) -> None:
        """Count and report a failure."""
        duration_s = self._record_pace(began)
        stats = self._stats[message.stream]
        stats.failed += 1
        stats.handling_s.append(duration_s)
        message.progress = _FAILED
        # An outage is logged once, not for each message. What the processor has stored, it has logged.
        if not is_logged and logger.is_enabled(logging.WARNING) and not isinstance(error, InfrastructureError):
            self._log_failure(message, error, duration_s)
        subscribed = self._dispatcher.subscribed
        if Failed in subscribed:
            self._dispatcher.emit(Failed(message, error, duration_s))
        if EngineError in subscribed and not (isinstance(error, ENDS) or message.lease_lost):
            # SPEC(002 CM-001.14): any error during processing is an ``error`` event, and a handler's is one. A lost
            # lease is reported by the part that has found it.
            self._dispatcher.emit(EngineError(error, message))

    def _log_failure(self, message: RuntimeMessage, error: BaseException, duration_s: float) -> None:
        logger.failure(
            logging.WARNING,
            _FAILED_TEXT if self._cap is None else _FAILED_TEXT_OF_MOST,
            error,
            tracebacks=self._log_tracebacks,
            message_id=message.id,
            stream=message.stream,
            deliveries=message.delivery_count,
            max_deliveries=self._cap,
            next_try_s=self._claim_idle_s,
            duration_s=round(duration_s, 3),
        )
