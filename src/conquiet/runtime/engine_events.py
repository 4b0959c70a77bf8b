"""The four kinds of engine events, and the dispatcher that calls the subscribed callbacks.

    started ──▶ succeeded | failed         about one message
    error                                  about the engine, or a message it did not run

``succeeded`` means that the handler returned and its acknowledgement is queued or sent. If it cannot
be sent, an ``error`` follows.
"""

import asyncio
import contextlib
import functools
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from conquiet.core.functions import require_handler
from conquiet.core.log import FactLogger
from conquiet.core.task_cancellation import forget_cancellations, is_ending
from conquiet.core.worker_pool import current_worker, enter_worker
from conquiet.errors import ConfigurationError
from conquiet.runtime.message import RuntimeMessage

logger = FactLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A handler is about to be called with this message."""

    message: RuntimeMessage


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A handler returned; the message is being acknowledged, if it was not already."""

    message: RuntimeMessage
    duration_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A handler raised, was cancelled, or lost its message. The message is not acknowledged."""

    message: RuntimeMessage
    error: BaseException
    duration_s: float


@dataclass(frozen=True, slots=True)
class EngineError:
    """An error of the engine, or of a handler.

    Attributes:
        error: The exception. Errors that conquiet detects are ``ConquietError`` subclasses.
        message: The affected message, if there is one.
    """

    error: BaseException
    message: RuntimeMessage | None = None


EngineEvent = Started | Succeeded | Failed | EngineError
Callback = Callable[[Any], Awaitable[None] | None]

NAMES: dict[str, type[EngineEvent]] = {
    "started": Started,
    "succeeded": Succeeded,
    "failed": Failed,
    "error": EngineError,
}


class EventDispatcher:
    """Calls plain callbacks inline and async callbacks in order, in a separate task.

    If a callback raises, the class of the error is logged and nothing else changes. Async callbacks that fall behind
    slow down the handlers (``wait_below_limit()``), so the queue stays bounded.
    """

    def __init__(self, *, limit: int = 1_000) -> None:
        self._callbacks: dict[type[EngineEvent], list[tuple[Callback, bool]]] = {kind: [] for kind in NAMES.values()}
        """Callbacks by kind of event, and whether each is async."""
        self._queue: deque[tuple[Callback, EngineEvent]] = deque()
        self._limit = limit
        # Checked before an event is built: no event is built without a subscriber.
        self.subscribed: set[type[EngineEvent]] = set()
        self._wake = asyncio.Event()
        self._emptied = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._closing = False

    def on(self, name: str, callback: Callback) -> None:
        """Call ``callback(event)`` for every later event of this name."""
        kind = _kind_of(name)
        self._callbacks[kind].append((callback, require_handler("callback", callback, "event")))
        self.subscribed.add(kind)

    def off(self, name: str, callback: Callback) -> None:
        """End a subscription of ``on``: no event after this is queued. Calls already queued are still made.

        Raises:
            ConfigurationError: There is no such event, or the callback is not subscribed to it.
        """
        kind = _kind_of(name)
        subscriptions = self._callbacks[kind]
        found = next((one for one in subscriptions if one[0] == callback), None)
        if found is None:
            raise ConfigurationError("this callback is not subscribed to this event")
        subscriptions.remove(found)
        if not subscriptions:
            self.subscribed.discard(kind)

    def emit(self, event: EngineEvent) -> None:
        """Call the callbacks on the event loop. Never waits and raises no error of a callback."""
        kind = type(event)
        for callback, is_async in tuple(self._callbacks[kind]):  # a callback may end a subscription
            if is_async:
                self._defer(callback, event)
                continue
            try:
                result = callback(event)
                if inspect.isawaitable(result):  # a plain function that returned a coroutine
                    self._defer(functools.partial(_the_same, result), event)
            except (SystemExit, KeyboardInterrupt):
                raise  # a signal of the process arrived during the callback
            except BaseException as error:  # noqa: BLE001
                # A bug in the callback must not affect the engine or the message. A CancelledError is caught as well:
                # a plain callback awaits nothing, so the cancellation was not addressed to this task.
                _log_failure(callback, event, error)

    def _defer(self, callback: Callback, event: EngineEvent) -> None:
        self._queue.append((callback, event))
        self._wake.set()

    @property
    def is_full(self) -> bool:
        """True while the queue of async callbacks is at its limit. Handlers should wait."""
        return len(self._queue) >= self._limit

    async def wait_below_limit(self) -> None:
        """Wait until the queue is below its limit."""
        while self.is_full and self._task is not None and not self._task.done():
            self._emptied.clear()
            await self._emptied.wait()

    def start(self) -> None:
        """Start the task that calls async callbacks."""
        self._owner = asyncio.current_task()
        self._task = asyncio.create_task(self._serve(), name="conquiet-events")

    async def close(self, *, timeout_s: float) -> int:
        """Make the queued calls for at most ``timeout_s``, then cancel. Return how many calls were not made."""
        if self._task is None:
            return len(self._queue)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._queue and not self._task.done():
                    self._emptied.clear()
                    await self._emptied.wait()
        self._closing = True
        self._task.cancel()
        # A callback that suppresses its cancellation is abandoned, like such a handler.
        _, still_running = await asyncio.wait({self._task}, timeout=timeout_s)
        if still_running:
            logger.warning("event callback does not end")
        self._emptied.set()
        if self._queue:
            logger.warning("event callbacks were not called", calls=len(self._queue))
        return len(self._queue)

    def owns_current_task(self) -> bool:
        """Return whether the caller is an async callback and so cannot wait for the queued calls."""
        return self._task is not None and current_worker() is self._task

    async def _serve(self) -> None:
        enter_worker()
        while not self._closing:
            try:
                await self._call_all()
            except asyncio.CancelledError:
                # Unless this dispatcher is closing, the cancellation was meant for a callback and arrived after it
                # ended, for example from a watchdog. The other callbacks must still be called.
                if is_ending(self._owner) or self._closing:
                    raise
                self._forget_cancellations()

    async def _call_all(self) -> None:
        """Call the callbacks of all queued events, then sleep until there are more."""
        while self._queue:
            callback, event = self._queue[0]
            try:
                result = callback(event)
                if result is not None:
                    await result
            except asyncio.CancelledError as error:
                if is_ending(self._owner) or self._closing:
                    raise
                self._forget_cancellations()
                _log_failure(callback, event, error)
            except (SystemExit, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                _log_failure(callback, event, error)
            self._queue.popleft()
            if self._closing:
                return  # close() cancelled this task, and the callback suppressed that
            if len(self._queue) * 2 <= self._limit:
                self._emptied.set()
        self._emptied.set()
        self._wake.clear()
        await self._wake.wait()

    def _forget_cancellations(self) -> None:
        if self._task is not None:
            forget_cancellations(self._task)


def _kind_of(name: str) -> type[EngineEvent]:
    kind = NAMES.get(name)
    if kind is None:
        raise ConfigurationError(f"there is no event of that name; there are {', '.join(NAMES)}")
    return kind


def _the_same(waiting: Awaitable[None], _: EngineEvent) -> Awaitable[None]:
    return waiting


def _log_failure(callback: Callback, event: EngineEvent, error: BaseException) -> None:
    # Neither the error text nor the traceback, which ends in it: the text may quote the message.
    logger.failure(
        logging.ERROR,
        "event callback failed",
        error,
        event_name=type(event).__name__,
        callback=getattr(callback, "__qualname__", type(callback).__qualname__),
    )
