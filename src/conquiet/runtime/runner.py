"""One message, from its slot to its settlement. Acknowledged in the only branch where it is right."""

import asyncio
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conquiet.errors import ConfigurationError, DeliveriesExhaustedError, LeaseLostError
from conquiet.kernel.functions import call_in_thread, refuse_generator_function, require_arguments
from conquiet.kernel.redaction import printable
from conquiet.runtime.concurrency_pool import begin_isolated
from conquiet.runtime.context import Custody, MessageContext, RuntimeMessage, SyncMessageContext
from conquiet.runtime.events import EngineError, EventDispatcher, Failed, Started, Succeeded
from conquiet.runtime.lease import LeaseTable
from conquiet.runtime.metrics import StreamTally, observe_exhausted
from conquiet.runtime.news import News
from conquiet.runtime.settings import RuntimeSettings

logger = logging.getLogger(__name__)

Handler = Callable[[RuntimeMessage, Any], Any]
"""``async def handler(message, ctx)`` or a plain function of the same shape, which runs in a thread."""

ENDS = (asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit)
"""What goes on after a message was settled: it may be meant for the slot, the event loop or the process."""

_WEIGHT = 0.05


def is_async(function: Callable[..., Any], name: str = "handler") -> bool:
    """True for ``async def`` in any of its disguises (a method, a partial, an object with an async __call__)."""
    if not callable(function):
        raise ConfigurationError(f"{name} must be callable: async def {name}(message, ctx)")
    refuse_generator_function(name, function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    )


class Invoker:
    """Calls a user's function the way its kind demands: awaited, or in a thread."""

    def __init__(
        self, function: Handler, custody: Custody, executor: Callable[[], ThreadPoolExecutor], *, name: str = "handler"
    ) -> None:
        self._function = function
        self._custody = custody
        self._executor = executor
        self._is_async = is_async(function, name)
        require_arguments(name, function, "message", "ctx")

    def __call__(self, message: RuntimeMessage) -> Awaitable[None] | None:
        """Begin at once. Return what to await, or None if it is through. Context variables that it sets end with it."""
        if self._is_async:
            return begin_isolated(self._function(message, MessageContext(message, self._custody)))
        return self._in_thread(message)

    async def _in_thread(self, message: RuntimeMessage) -> None:
        loop = asyncio.get_running_loop()
        ctx = SyncMessageContext(message, self._custody, loop)
        run = contextvars.copy_context().run
        await loop.run_in_executor(self._executor(), run, call_in_thread, "the handler", self._function, message, ctx)


class Runner:
    """What a slot does with a message.

    Args:
        handler: The user's function.
        on_exhausted: Called instead of it past ``max_deliveries``.
        acknowledge: Called with each success.
        table: Where failures are let go of.
        dispatcher: Who is told.
        tallies: Where it is counted.
        settings: Limits.
        custody: To ask whether an old lease still holds.
    """

    def __init__(
        self,
        handler: Invoker,
        *,
        on_exhausted: Invoker | None,
        acknowledge: Callable[[RuntimeMessage], None],
        table: LeaseTable,
        dispatcher: EventDispatcher,
        tallies: Mapping[str, StreamTally],
        settings: RuntimeSettings,
        custody: Custody,
    ) -> None:
        self._handler = handler
        self._on_exhausted = on_exhausted
        self._acknowledge = acknowledge
        self._table = table
        self._dispatcher = dispatcher
        self._tallies = tallies
        self._custody = custody
        self._cap = settings.max_deliveries
        self._claim_idle_s = settings.claim_idle_s
        self._news = News()
        # Until the first message is through, suppose that handlers are slow: nothing is prefetched.
        self.average_s = 1_000.0
        self.last_end = time.monotonic()

    async def __call__(self, message: RuntimeMessage) -> None:
        """Handle one message and settle it. Raises nothing but a cancellation."""
        began = time.monotonic()
        if began - message.leased_at > self._claim_idle_s or message.lease_lost:
            # It waited too long in our hands, or we were stopped: somebody may be working on it.
            if not await self._still_ours(message):
                return
            began = time.monotonic()
        message.started_at = began
        if self._cap is not None and message.delivery_count > self._cap:
            await self._give_up(message)
            return
        self._begin(message)
        try:
            # A handler that never waits is through by now: it costs no switch.
            if (rest := self._handler(message)) is not None:
                await rest
        except ENDS as error:
            # Broken off by us (a forced stop) or by itself, or the process is to end. Either way it is not done.
            self._fail(message, error, began)
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything, and its slot must live on
            self._fail(message, error, began)
        else:
            if message.lease_lost and not message.acknowledged:
                # Done here, but in other hands there. Its new holder settles it: acknowledging for him
                # would hide a run that may fail, and the fence belongs to the transaction, not to us.
                self._fail(message, lease_lost(message), began)
            else:
                self._succeed(message, began)
        if self._dispatcher.is_full:
            await self._dispatcher.room()

    def _begin(self, message: RuntimeMessage) -> None:
        if message.delivery_count == 1:
            waited_s = time.time() - int(message.id.partition("-")[0]) / 1000
            # Clocks differ. Not max(): its call costs as much as all the rest.
            self._tallies[message.stream].wait_s.append(waited_s if waited_s > 0.0 else 0.0)  # noqa: FURB136
        if Started in self._dispatcher.heard:
            self._dispatcher.emit(Started(message))

    def _succeed(self, message: RuntimeMessage, began: float) -> None:
        self.last_end = now = time.monotonic()
        duration_s = now - began
        self._note(duration_s)
        tally = self._tallies[message.stream]
        tally.succeeded += 1
        tally.handling_s.append(duration_s)
        message.settled = message.succeeded = True
        if message.acknowledged:
            self._table.release(message)
        else:
            self._acknowledge(message)
        if Succeeded in self._dispatcher.heard:
            self._dispatcher.emit(Succeeded(message, duration_s))

    def _fail(self, message: RuntimeMessage, error: BaseException, began: float) -> None:
        # Not acknowledged, so the entry stays pending: after claim_idle somebody tries again.
        self.last_end = now = time.monotonic()
        duration_s = now - began
        self._note(duration_s)
        tally = self._tallies[message.stream]
        tally.failed += 1
        tally.handling_s.append(duration_s)
        message.settled = True
        self._table.release(message)
        # The error's text may hold anything of the payload: its class is what a log may show.
        logger.warning(
            "message failed",
            extra={"stream": message.stream, "message_id": message.id, "error": type(error).__name__},
        )
        self._dispatcher.emit(Failed(message, error, duration_s))

    async def _give_up(self, message: RuntimeMessage) -> None:
        """Do not run it. Hand it to ``on_exhausted``, or report it once and leave it parked."""
        is_news = self._news.is_new(message.stream, message.id)  # it comes again with every claim
        if is_news:
            observe_exhausted(message.stream)
        try:
            if self._on_exhausted is not None:
                if (rest := self._on_exhausted(message)) is not None:
                    await rest
            elif is_news:
                self._dispatcher.emit(EngineError(_exhausted(message), message))
        except ENDS as error:
            self._dispatcher.emit(EngineError(error, message))
            raise
        except BaseException as error:  # noqa: BLE001 - the same
            self._dispatcher.emit(EngineError(error, message))
        finally:
            message.settled = True
            self._table.release(message)

    async def _still_ours(self, message: RuntimeMessage) -> bool:
        """Ask the server, unless the heartbeat has. Who finds that it is lost tells so; here it is only let go of."""
        try:
            if not message.lease_lost and await self._custody.extend(message):
                return True
        except Exception as error:  # noqa: BLE001 - not known to be ours is as good as lost: it stays pending
            self._dispatcher.emit(EngineError(error, message))
        message.settled = True
        message.lease_lost = True
        self._table.release(message)
        return False

    def _note(self, duration_s: float) -> None:
        average_s = self.average_s
        self.average_s = duration_s if average_s == 1_000.0 else average_s + _WEIGHT * (duration_s - average_s)  # noqa: PLR2004


def lease_lost(message: RuntimeMessage) -> LeaseLostError:
    """Return the error that tells a loser."""
    return LeaseLostError(
        f"message {message.id} of stream {printable(message.stream)!r} is in other hands by now; "
        "it was not acknowledged here",
        stream=message.stream,
        message_id=message.id,
    )


def _exhausted(message: RuntimeMessage) -> DeliveriesExhaustedError:
    return DeliveriesExhaustedError(
        f"message {message.id} of stream {printable(message.stream)!r} was delivered {message.delivery_count} times "
        "and is not run again. It stays pending: acknowledge or move it, or pass on_exhausted",
        stream=message.stream,
        message_id=message.id,
        delivery_count=message.delivery_count,
    )
