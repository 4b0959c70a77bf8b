"""At most so many handlers at once: a fixed set of coroutines over a buffer.

There is no task per message. A handler that never really waits is run to its end by the worker that
took it, and the next one after it; other workers are woken only once a handler has let go of the
event loop. So a no-op costs no switch at all, and slow handlers still overlap.
"""

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from conquiet.kernel.cancellation import forget_cancellations, is_ending
from conquiet.kernel.functions import refuse_unawaited

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TURN_S = 0.005
"""How long one worker may go on without letting the rest of the event loop run."""


class ConcurrencyPool(Generic[T]):
    """Runs ``work(item)`` for each item put in, never more than ``limit`` at once.

    ``work`` is expected to deal with its own errors; one that escapes is logged and the slot lives on.
    """

    def __init__(self, limit: int, work: Callable[[T], Awaitable[None]], *, on_free: Callable[[], None]) -> None:
        self._limit = limit
        self._work = work
        self._on_free = on_free
        self._waiting: deque[T] = deque()
        self._running: dict[asyncio.Task[None], T] = {}
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._workers: list[asyncio.Task[None]] = []
        self._owner: asyncio.Task[Any] | None = None
        self._wake_planned = False
        self._step = 1
        self._mark = -1
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closing = False
        self._on_hold = False

    @property
    def active(self) -> int:
        """Handlers running now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Items that no handler has begun with."""
        return len(self._waiting)

    @property
    def in_hand(self) -> int:
        """Both of the above."""
        return len(self._running) + len(self._waiting)

    @property
    def running(self) -> list[T]:
        """What is being handled now."""
        return list(self._running.values())

    def start(self) -> None:
        """Create the workers. They end with the task that calls this, if not before."""
        self._owner = asyncio.current_task()
        self._workers = [
            asyncio.create_task(self._serve(), name=f"conquiet-slot-{number}") for number in range(self._limit)
        ]

    def put(self, items: list[T]) -> None:
        """Add items; the first free slot begins at the next turn of the loop."""
        if items:
            self._quiet.clear()
            self._waiting.extend(items)
            self._step = 1
            self._wake(1)

    def tell_at(self, waiting: int) -> None:
        """Call ``on_free`` and let the event loop turn once, as soon as only so many items are waiting.

        Handlers that never wait would otherwise empty the store in one go, and nothing would be on its way.
        """
        self._mark = waiting

    def hold(self) -> None:
        """Begin with nothing any more. What is running goes on."""
        self._on_hold = True
        self._check_quiet()

    def take_back(self) -> list[T]:
        """Return, and forget, everything that no handler has begun with."""
        items = list(self._waiting)
        self._waiting.clear()
        self._check_quiet()
        return items

    async def wait_quiet(self) -> None:
        """Return when nothing is running, nor about to."""
        await self._quiet.wait()

    def cancel_running(self) -> list[T]:
        """Cancel the handlers that are running; return what they were working on."""
        for worker in self._running:
            worker.cancel()
        return list(self._running.values())

    async def close(self, *, timeout_s: float = 5.0) -> int:
        """End the workers. What still runs is cancelled. Returns how many did not let themselves be ended."""
        self._closing = True
        for worker in self._workers:
            worker.cancel()
        if not self._workers:
            return 0
        _, stubborn = await asyncio.wait(self._workers, timeout=timeout_s)
        return len(stubborn)

    async def _serve(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are in one
        while not self._closing:
            try:
                await self._take_turns(task)
            except asyncio.CancelledError:
                # Any but ours at the end was meant for a handler. It may even come after it, from a watchdog that was
                # not called off in time: the slot is not the handler's. But an event loop that ends waits for all.
                if is_ending(self._owner) or self._closing:
                    self._check_quiet()
                    raise
                forget_cancellations(task)
            self._check_quiet()
            self._on_free()

    async def _take_turns(self, task: "asyncio.Task[None]") -> None:
        """Sleep until something waits, then work on it as long as there is something."""
        loop = asyncio.get_running_loop()
        waiting, running, work = self._waiting, self._running, self._work
        if not waiting or self._on_hold:
            sleeper = loop.create_future()
            self._sleepers.append(sleeper)
            await sleeper
        turn_began = time.monotonic()
        while waiting and not self._on_hold:
            running[task] = waiting.popleft()
            if not self._wake_planned:
                self._plan_wake(loop)
            try:
                await work(running[task])
            except Exception:  # a mistake of ours in `work`: the slot lives, the message stays pending
                logger.exception("slot failed")
            finally:
                del running[task]
            if task.cancelling():
                # Meant for the handler, which has dealt with it or never waited: the next one is not to pay for it.
                await asyncio.sleep(0)  # what is still to be raised is raised here
                forget_cancellations(task)
            if waiting and (len(waiting) == self._mark or time.monotonic() - turn_began > _TURN_S):
                self._mark = -1
                self._on_free()
                await asyncio.sleep(0)
                turn_began = time.monotonic()

    def _plan_wake(self, loop: asyncio.AbstractEventLoop) -> None:
        # Runs at the next turn of the loop, that is when our handler waits or is through. If items are
        # still waiting then, others can take them; if none is, who fetches may have stopped for this last one.
        if self._sleepers or not self._waiting:
            self._wake_planned = True
            loop.call_soon(self._wake_rest)

    def _wake_rest(self) -> None:
        self._wake_planned = False
        self._on_free()
        if self._waiting:
            # Twice as many each time: a worker that was only taking a breath needs no help, and a
            # thousand that wait are all awake after ten turns.
            self._wake(min(self._step, len(self._waiting)))
            self._step *= 2

    def _wake(self, count: int) -> None:
        sleepers = self._sleepers
        while count > 0 and sleepers:
            sleeper = sleepers.popleft()
            if not sleeper.done():  # else cancelled: it would wake nobody
                sleeper.set_result(None)
                count -= 1

    def _check_quiet(self) -> None:
        if not self._running and (self._on_hold or not self._waiting):
            self._quiet.set()


def begin_isolated(coroutine: Coroutine[Any, Any, Any]) -> Awaitable[None] | None:
    """Run a handler's coroutine up to where it waits, in a copy of the current context. None: it is through already.

    A task per message would give each handler context variables of its own; workers that live on must
    not let one message's variables (a request id, a bound logger) leak into the next.

    Raises:
        ConfigurationError: It answered with something that was still to be awaited: its work was not done.
    """
    run = contextvars.copy_context().run
    try:
        waited_for = run(coroutine.send, None)
    except StopIteration as end:
        if end.value is not None:
            refuse_unawaited(end.value)
        return None
    return _Rest(coroutine, run, waited_for)


class _Rest(Awaitable[None]):
    """What is left of a coroutine that waits for something."""

    __slots__ = ("_coroutine", "_run", "_waited_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], run: Callable[..., Any], waited_for: Any) -> None:
        self._coroutine = coroutine
        self._run = run
        self._waited_for = waited_for

    def __await__(self) -> Generator[Any, Any, None]:
        run, waited_for = self._run, self._waited_for
        send, throw = self._coroutine.send, self._coroutine.throw
        try:
            while True:
                try:
                    answer = yield waited_for
                except BaseException as error:  # noqa: BLE001 - a cancellation, above all; it belongs to the handler
                    waited_for = run(throw, error)
                else:
                    waited_for = run(send, answer)
        except StopIteration as end:
            if end.value is not None:
                refuse_unawaited(end.value)
