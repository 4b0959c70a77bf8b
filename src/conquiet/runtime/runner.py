"""Run one message and settle it.

still owned? ─▶ malformed? delivered too often? ─▶ charge ─▶ execute ─▶ settle ─▶ report
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from conquiet.core.seen_ids import SeenIds
from conquiet.core.settlement import ACKNOWLEDGE, DeadLetter, KeepPending, Release, RetryLater, Settlement
from conquiet.errors import DeliveriesExhaustedError
from conquiet.metrics.registry import RUNTIME_EXHAUSTED_TOTAL
from conquiet.metrics.safety import count
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.engine_events import EngineError, Started
from conquiet.runtime.executor import ENDS, PendingSettlement
from conquiet.runtime.lease_table import lease_lost
from conquiet.runtime.leases import Leases
from conquiet.runtime.message import Charge, HandlerState, Ownership, RuntimeMessage
from conquiet.runtime.outcomes import OutcomeReporter
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.settler import Settler

# Bound once: in Python 3.11 every access to a member of an enum class costs as much as a function call.
_RUNNING, _SUCCEEDED, _FAILED = HandlerState.RUNNING, HandlerState.SUCCEEDED, HandlerState.FAILED
_HELD = Ownership.HELD


class Runner:
    """Handles one message of the worker pool.

    Args:
        parts: The parts that all parts of the engine share. While the outage is paused, unstarted messages are
            released.
        settler: Carries out the settlement.
        leases: Lease operations, for contexts, to check an old lease and to charge a delivery.
    """

    def __init__(self, parts: EngineParts, settler: Settler, leases: Leases) -> None:
        self._executor, self._execute = parts.executor, parts.executor.execute
        self._settler = settler
        self._leases, self._acknowledge = leases, leases.acknowledge_soon
        self._dispatcher, self._subscribed = parts.events, parts.events.subscribed
        self._stats = parts.stats
        self._outcomes = OutcomeReporter(parts)
        self._cap = parts.settings.max_deliveries
        self._claim_idle_s = parts.settings.claim_idle_s
        self._outage = parts.outage
        self._reported = SeenIds()

    def __call__(self, message: RuntimeMessage, *, is_admitted: bool = False) -> Awaitable[None] | None:
        """Start one message. Return the rest of the work, or None if the message is settled.

        A coroutine is created only for a message that needs one: a handler that suspends, or a call to the server.
        It raises only a cancellation or an error that ends the process.
        """
        began = time.monotonic()
        is_new = message.delivery_count == 1
        if not is_admitted and (
            not is_new
            or began - message.leased_at > self._claim_idle_s
            or message.ownership is not _HELD
            or message.malformed
            or self._outage.is_on
        ):
            return self._run_if_admitted(message, began)
        if is_new:
            # ``ids.milliseconds_of``, without the call.
            waited_s = time.time() - int(message.id.partition("-")[0]) / 1000
            # Clocks of hosts differ, so it may be negative. Calling max() would double the cost of this statement.
            self._stats[message.stream].wait_s.append(waited_s if waited_s > 0.0 else 0.0)  # noqa: FURB136
        message.started_at = began
        message.progress = _RUNNING
        if self._subscribed and Started in self._subscribed:
            self._dispatcher.emit(Started(message))
        try:
            settlement = self._execute(message, self._leases)
        except ENDS as error:
            self._end(message, error, began)
            raise
        except BaseException as error:  # noqa: BLE001 - a bug in an executor must not end the worker
            settlement = KeepPending(error)
        if settlement is ACKNOWLEDGE or type(settlement) is KeepPending or isinstance(settlement, Settlement):
            rest = self._settle(message, settlement, began)
        else:
            rest = self._finish(message, settlement, began)
        # The traceback of a failure refers to this frame. Without this line each failure is a reference cycle for the
        # garbage collector, which costs more than the whole failure.
        del settlement
        return rest

    async def _run_if_admitted(self, message: RuntimeMessage, now: float) -> None:
        if await self.admit(message, now) and (rest := self(message, is_admitted=True)) is not None:
            await rest

    async def _finish(self, message: RuntimeMessage, begun: Awaitable[Settlement], began: float) -> None:
        """Wait for the handler, then settle its message."""
        try:
            settlement = await begun
        except ENDS as error:
            self._end(message, error, began)
            raise
        except BaseException as error:  # noqa: BLE001 - as in ``__call__``
            settlement = KeepPending(error)
        rest = self._settle(message, settlement, began)
        del settlement  # a cycle, as in ``__call__``
        if rest is not None:
            await rest

    def _end(self, message: RuntimeMessage, error: BaseException, began: float) -> None:
        """Report a message after a cancellation or an error that ends the process. The message stays pending."""
        self._outcomes.failed(message, error, began)
        self._settler.keep_pending(message)

    def _settle(self, message: RuntimeMessage, settlement: Settlement, began: float) -> Awaitable[None] | None:
        """Settle a message. Return an awaitable for the remaining work, or None."""
        if settlement is ACKNOWLEDGE and message.ownership is _HELD:
            self._acknowledge(message)
            self._outcomes.succeeded(message, began)
        elif type(settlement) is KeepPending and settlement.failure is not None:
            self._settler.keep_pending(message, settlement.failure)
            self._outcomes.failed(message, settlement.failure, began)
        else:
            return self._settle_by_call(message, settlement, began)
        if self._outage.is_on:
            self._outage.record_result(started_at=began)
        return self._dispatcher.wait_below_limit() if self._subscribed and self._dispatcher.is_full else None

    async def _settle_by_call(self, message: RuntimeMessage, settlement: Settlement, began: float) -> None:
        """Carry out a settlement that may need a call to the server."""
        await self.settle(message, settlement, began)
        if self._outage.is_on and not isinstance(settlement, Release):
            self._outage.record_result(started_at=began)
        del settlement  # a cycle, as in ``__call__``
        if self._subscribed and self._dispatcher.is_full:
            await self._dispatcher.wait_below_limit()

    async def admit(self, message: RuntimeMessage, now: float) -> bool:
        """Return True if the message may run. Otherwise it has been settled."""
        if self._outage.is_paused:
            await self._settler.settle(message, Release())
            return False
        if now - message.leased_at > self._claim_idle_s or message.lease_lost:
            # It waited too long for a worker, or the process was suspended: another consumer may be running it.
            if not await self._is_ours(message, self._leases.extend):
                return False
            now = time.monotonic()
        message.started_at = now
        if message.malformed:
            await self._decide(message, self._executor.malformed, is_first=True)
            return False
        if self._cap is not None and message.delivery_count > self._cap:
            is_first = self._reported.add(message.stream, message.id)  # every claim returns it again
            count(RUNTIME_EXHAUSTED_TOTAL, message.stream, n=int(is_first))
            await self._decide(message, self._executor.exhausted, is_first=is_first)
            return False
        if message.charge is Charge.AT_START_ALONE:
            # It may kill the process. Unsent acknowledgements would be lost and their messages charged again.
            await self._leases.flush()
        return message.charge is Charge.COUNTED or await self._is_ours(message, self._leases.charge)

    async def _is_ours(self, message: RuntimeMessage, call: Callable[[RuntimeMessage], Awaitable[bool]]) -> bool:
        """Make a call that returns True only for the owner of the message. Release the lease if it does not."""
        try:
            if not message.lease_lost and await call(message):
                return True
        except Exception as error:  # noqa: BLE001 - unknown ownership counts as lost: the message stays pending
            self._dispatcher.emit(EngineError(error, message))
        message.progress = _FAILED
        message.lose()
        self._settler.keep_pending(message)
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
            failure = (await self._settler.settle(message, settlement)).failure or failure
        except ENDS as error:
            failure = error
            raise
        except BaseException as error:  # noqa: BLE001 - the message stays pending, and the worker continues
            failure = error
        finally:
            message.progress = _FAILED
            if failure is not None:
                self._settler.keep_pending(message)
                if is_first or not isinstance(failure, DeliveriesExhaustedError):
                    self._dispatcher.emit(EngineError(failure, message))

    async def settle(self, message: RuntimeMessage, settlement: Settlement, began: float) -> None:
        """Carry out and report any settlement. Plain successes take a faster path."""
        failure = settlement.failure
        if failure is None and message.lease_lost:
            # Do not acknowledge: another consumer owns the message now, and its run may fail. Preventing a double
            # effect is the task of the transaction.
            failure = lease_lost(message)
            settlement = KeepPending(failure)
        message.progress = _SUCCEEDED if failure is None else _FAILED
        try:
            failure = (await self._settler.settle(message, settlement)).failure or failure
        except asyncio.CancelledError as error:
            self._outcomes.failed(message, failure or error, began)
            raise
        except Exception as error:  # noqa: BLE001 - the server returned an error: the message stays pending
            failure = error
        if failure is None:
            self._outcomes.succeeded(message, began)
        else:
            stored = isinstance(settlement, RetryLater | DeadLetter) and settlement.failure is failure
            self._outcomes.failed(message, failure, began, is_logged=stored)
