"""A bounded worker pool: a fixed number of coroutines that take items from one queue.

There is no task per message. A worker runs one handler after the other; other workers are woken only once a handler
has suspended. So a no-op handler costs no task switch, and slow handlers overlap.

See docs/decisions/0013.
"""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

import msgspec

from conquiet.core import tracing
from conquiet.core.log import FactLogger
from conquiet.core.task_cancellation import forget_cancellations, is_ending

logger = FactLogger(__name__)

T = TypeVar("T")

_worker: contextvars.ContextVar["asyncio.Task[Any] | None"] = contextvars.ContextVar("conquiet_worker", default=None)

current_worker = _worker.get
"""Return the worker task that runs the current item, None outside a pool. Costs a tenth of asyncio.current_task()."""

_SLICE_S = 0.005
"""Longest time that one worker runs without yielding to the event loop."""
_DRAIN_S = 30.0
"""Longest wait of an item that runs alone for running handlers. Afterwards it starts while they run."""


class WorkerPool(Generic[T]):
    """Runs ``work(item)`` for each item, at most ``limit`` concurrently.

    ``work`` returns an awaitable, or None if it has ended. It should handle its errors; an error that escapes is
    logged, and the worker continues.
    """

    def __init__(self, limit: int, work: Callable[[T], Awaitable[None] | None], *, on_free: Callable[[], None]) -> None:
        self._limit = limit
        self._work = work
        self._on_free = on_free
        self._waiting: deque[T] = deque()
        self._alone: deque[T] = deque()
        self._lone_worker: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._running: dict[asyncio.Task[None], T] = {}
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._workers: list[asyncio.Task[None]] = []
        self._owner: asyncio.Task[Any] | None = None
        self._wake_planned = False
        self._turn = 0  # counts iterations of the event loop in which a worker waits
        self._turn_planned = False
        self._step = 1
        self._notify_at = -1
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._paused = False
        self._is_shut = False  # paused, or one item runs alone

    @property
    def active(self) -> int:
        """Number of running handlers."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of unstarted items."""
        return len(self._waiting) + len(self._alone)

    @property
    def queued(self) -> list[T]:
        """The unstarted items."""
        return [*self._alone, *self._waiting]

    @property
    def in_flight(self) -> int:
        """Number of running and waiting items."""
        return len(self._running) + len(self._waiting) + len(self._alone)

    def runs_last(self) -> bool:
        """Return whether one item is running and none is waiting. A method, so that callers can bind it."""
        return not self._waiting and len(self._running) == 1 and not self._alone

    @property
    def running(self) -> list[T]:
        """The items that are being handled."""
        return list(self._running.values())

    def start(self) -> None:
        """Create the workers. They end no later than the task that calls this."""
        self._owner = asyncio.current_task()
        self._workers = [
            asyncio.create_task(self._serve(), name=f"conquiet-pool-{number}") for number in range(self._limit)
        ]

    def put(self, items: list[T]) -> None:
        """Add items. The first free worker starts in the next iteration of the loop."""
        if items:
            self._idle.clear()
            self._waiting.extend(items)
            self._step = 1
            self._wake(1)

    def put_alone(self, items: list[T]) -> None:
        """Add items that run one at a time, with no other handler running."""
        if not items:
            return
        self._idle.clear()
        self._alone.extend(items)
        if self._lone_worker is None or self._lone_worker.done():
            self._lone_worker = asyncio.create_task(self._serve_alone(), name="conquiet-pool-alone")

    def notify_below(self, waiting: int) -> None:
        """Call ``on_free`` and yield to the event loop once when the queue shrinks to this length.

        Without this, handlers that never suspend would empty the queue before the next items are fetched.
        """
        self._notify_at = waiting

    def pause(self) -> None:
        """Stop starting items. Running handlers continue."""
        self._paused = self._is_shut = True
        self._check_idle()

    def drain_queue(self) -> list[T]:
        """Remove and return the unstarted items."""
        items = [*self._alone, *self._waiting]
        self._waiting.clear()
        self._alone.clear()
        self._check_idle()
        return items

    async def wait_idle(self) -> None:
        """Return when no handler is running and none will start."""
        await self._idle.wait()

    def cancel_running(self) -> list[T]:
        """Cancel the running handlers and return their items."""
        for worker in self._running:
            worker.cancel()
        return list(self._running.values())

    def owns_current_task(self) -> bool:
        """Return whether the caller runs inside a handler of this pool and so cannot wait for the pool to end."""
        return current_worker() in self._all_workers()

    def abort(self) -> int:
        """Cancel the workers and their handlers without waiting. Return how many handlers were running."""
        self._closing = True
        for worker in self._all_workers():
            worker.cancel()
        return len(self._running)

    async def close(self, *, timeout_s: float = 5.0) -> int:
        """Cancel the workers and their handlers. Return how many did not end within ``timeout_s``."""
        self.abort()
        workers = self._all_workers()
        if not workers:
            return 0
        _, running = await asyncio.wait(workers, timeout=timeout_s)
        return len(running)

    def _all_workers(self) -> "list[asyncio.Task[None]]":
        return [*self._workers, *([] if self._lone_worker is None else [self._lone_worker])]

    async def _serve(self) -> None:
        task = enter_worker()
        while not self._closing:
            try:
                await self._run_items(task)
            except asyncio.CancelledError:
                # Unless the pool or its owner is ending, the cancellation was meant for a handler and may arrive after
                # it ended (from a watchdog that was not cancelled in time). If the owner is ending, the worker must
                # end as well: asyncio.run() waits for all tasks.
                if is_ending(self._owner) or self._closing:
                    self._check_idle()
                    raise
                forget_cancellations(task)
            self._check_idle()
            self._on_free()

    async def _run_items(self, task: "asyncio.Task[None]") -> None:
        """Wait for an item, then run items until none is left."""
        loop = asyncio.get_running_loop()
        waiting, running, work, monotonic = self._waiting, self._running, self._work, time.monotonic
        if not waiting or self._is_shut:
            sleeper = loop.create_future()
            self._sleepers.append(sleeper)
            await sleeper
        slice_began = monotonic()
        while waiting and not self._is_shut:
            running[task] = item = waiting.popleft()
            if not self._wake_planned:
                self._plan_wake(loop)
            try:
                rest = work(item)
                if rest is not None:
                    if not (self._wake_planned or self._turn_planned):
                        self._plan_turn(loop)
                    turn = self._turn
                    await rest
                    if self._turn != turn:
                        slice_began = monotonic()  # the handler has suspended, so the event loop has had its turn
            except Exception as error:  # noqa: BLE001 - a bug in `work`: the worker continues, the message stays pending
                logger.failure(logging.ERROR, "pool worker failed; this is a bug of conquiet, please report it", error)
            finally:
                del running[task]
            if task.cancelling():
                # Meant for the handler, which caught it or never suspended: the next handler must not receive it.
                await asyncio.sleep(0)  # a pending cancellation is raised here
                forget_cancellations(task)
            if waiting and (len(waiting) == self._notify_at or monotonic() - slice_began > _SLICE_S):
                self._notify_at = -1
                self._on_free()
                await asyncio.sleep(0)
                slice_began = monotonic()

    async def _serve_alone(self) -> None:
        task = enter_worker()
        while self._alone and not self._paused:
            self._is_shut = True
            try:
                await self._drain()
                if self._alone and not self._paused:
                    self._running[task] = item = self._alone.popleft()
                    if (rest := self._work(item)) is not None:
                        await rest
            except asyncio.CancelledError:
                if is_ending(self._owner) or self._closing:
                    raise
                forget_cancellations(task)
            except Exception as error:  # noqa: BLE001 - a bug in `work`: the message stays pending
                logger.failure(logging.ERROR, "pool worker failed; this is a bug of conquiet, please report it", error)
            finally:
                self._running.pop(task, None)
                self._reopen()
                self._check_idle()
            self._on_free()
            await asyncio.sleep(0)  # waiting items start between two lone items

    def _reopen(self) -> None:
        self._is_shut = self._paused
        if not self._is_shut:
            self._wake(min(len(self._waiting), self._limit))

    async def _drain(self) -> None:
        """Wait until nothing runs, at most ``_DRAIN_S``: a hanging handler must not block the pool."""
        self._drained.clear()
        if self._running:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), _DRAIN_S)

    def _plan_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Increase the turn in the next iteration of the loop, which begins once the worker has suspended.

        Not needed while a wake is planned, which increases it, too: a callback costs about as much as an item.
        """
        self._turn_planned = True
        loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turn_planned = False
        self._turn += 1

    def _plan_wake(self, loop: asyncio.AbstractEventLoop) -> None:
        # Runs in the next iteration of the loop, when the handler has suspended or ended. If items are still waiting,
        # other workers take them. If none is, the fetcher may have been waiting for the last item to start.
        if self._sleepers or not self._waiting:
            self._wake_planned = True
            loop.call_soon(self._wake_rest)

    def _wake_rest(self) -> None:
        self._wake_planned = False
        self._turn += 1
        self._on_free()
        if self._waiting:
            # Twice as many each time: a handler that suspended only briefly needs few other workers, and a thousand
            # sleeping workers are awake after ten iterations.
            self._wake(min(self._step, len(self._waiting)))
            self._step *= 2

    def _wake(self, count: int) -> None:
        sleepers = self._sleepers
        while count > 0 and sleepers:
            sleeper = sleepers.popleft()
            if not sleeper.done():  # else its worker was cancelled
                sleeper.set_result(None)
                count -= 1

    def _check_idle(self) -> None:
        if self._running:
            return
        self._drained.set()
        if self._paused or not (self._waiting or self._alone):
            self._idle.set()


def enter_worker() -> "asyncio.Task[None]":
    """Prepare the context of a worker of an engine: code that it calls cannot wait for the end of the engine.

    The context is copied for every item. Return the worker's task.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - called inside a task
    _worker.set(task)
    if tracing.active is not None:
        tracing.active.enter_worker()
    return task


def start_in_context(
    coroutine: Coroutine[Any, Any, T], finish: Callable[[Any, BaseException | None], T] | None = None
) -> "T | Continuation[T]":
    """Run a coroutine in a copy of the current context up to its first suspension. Return its result if it has ended.

    A task per message would isolate the context variables of each handler. A worker handles many messages and must not
    leak the variables of one message (a request id, a bound logger) into the next.

    Args:
        coroutine: The coroutine of a handler.
        finish: Called with the result or the error of a coroutine that has suspended. The continuation returns its
            result. Wrapping the continuation in a coroutine would cost an extra step at every resumption.
    """
    run = contextvars.copy_context().run
    try:
        waited_for = run(coroutine.send, None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    return Continuation(coroutine, run, waited_for, finish)


class Continuation(msgspec.Struct, Generic[T]):
    """The rest of a suspended coroutine. A msgspec struct, because one is built for every handler that suspends."""

    coroutine: Coroutine[Any, Any, T]
    run: Callable[..., Any]
    waited_for: Any
    finish: Callable[[Any, BaseException | None], T] | None

    def __await__(self) -> Generator[Any, Any, T]:
        run, waited_for, finish = self.run, self.waited_for, self.finish
        send, throw = self.coroutine.send, self.coroutine.throw
        try:
            while True:
                try:
                    answer = yield waited_for
                except BaseException as error:  # noqa: BLE001 - usually a cancellation; it is passed to the handler
                    waited_for = run(throw, error)
                else:
                    waited_for = run(send, answer)
        except StopIteration as end:
            return end.value if finish is None else finish(end.value, None)
        except BaseException as error:
            if finish is None:
                raise
            return finish(None, error)
