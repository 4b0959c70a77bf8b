"""An event loop without a clock and without sockets: time moves when nothing is left to do, a seed decides the order.

Every callback belongs to a simulated process or to none. A killed process runs nothing more, from any ``await`` on: its
callbacks are dropped, and its tasks are kept so that none of their clean-up runs.
"""

import asyncio
import contextlib
import heapq
import random
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

STEP_S = 1e-6
"""The cost of one callback: a loop that waits for nothing still advances in time."""


_MOST_CLEAN_UPS = 50


class NothingLeftError(Exception):
    """Every task waits for another one: a deadlock."""


@dataclass(eq=False, slots=True)
class Process:
    """A simulated process.

    Attributes:
        fuse: Callbacks until it is killed; None if it lives on.
    """

    name: str
    is_alive: bool = True
    fuse: int | None = None
    endings: list[Any] = field(default_factory=list)

    def kill(self) -> None:
        """End it here: nothing of it runs again."""
        self.is_alive = False
        for ending in self.endings:
            ending()


CURRENT: ContextVar[Process | None] = ContextVar("CURRENT", default=None)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs ready callbacks one at a time, in an order that follows from the seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seeded = random.Random(seed)
        self._now = 1_000.0
        self._kept: list[Any] = []
        self.steps = 0
        self.on_kill: Any = None
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Return the virtual time."""
        return self._now

    def _make_task(self, loop: Any, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=loop, **options)
        if CURRENT.get() is not None:
            self._kept.append(task)  # not collected before the end: a killed one must not run its clean-up
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def forget(self) -> None:
        """Drop what was kept of killed processes: close each coroutine until it has no more clean-up to run."""
        asyncio._set_running_loop(self)  # a clean-up that starts a task meets this closed loop, and no other one
        for kept in self._kept:
            if isinstance(kept, asyncio.Task) and not kept.done():
                _close(kept.get_coro())
        asyncio._set_running_loop(None)
        self._kept.clear()

    def spawn(self, process: Process, coro: Any) -> "asyncio.Task[Any]":
        """Run a coroutine as a process."""
        context = copy_context()
        context.run(CURRENT.set, process)
        return context.run(self.create_task, coro)

    def call_in(self, process: Process, delay_s: float, call: Any, *args: Any) -> asyncio.TimerHandle:
        """Call a function of a process later."""
        context = copy_context()
        context.run(CURRENT.set, process)
        return self.call_later(delay_s, call, *args, context=context)

    # ------------------------------------------------------------ the loop itself
    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        self._move_due_timers(ready)
        if not ready:
            return
        place = self._seeded.randrange(len(ready)) if len(ready) > 1 else 0
        handle = ready[place]
        del ready[place]
        process = None if handle._cancelled else handle._context.get(CURRENT)
        if process is not None:
            if process.is_alive and process.fuse is not None:
                process.fuse -= 1
                if process.fuse <= 0:
                    self.on_kill(process)
            if not process.is_alive:
                self._kept.append(handle)
                return
        self._now += STEP_S
        self.steps += 1
        if not handle._cancelled:
            handle._run()

    def _move_due_timers(self, ready: Any) -> None:
        """Make due timers ready. Time moves to the next timer only when nothing else can run."""
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise NothingLeftError
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)

    def _write_to_self(self) -> None:
        """Nothing sleeps in a selector here."""

    def _process_events(self, event_list: Any) -> None:
        """There are no sockets."""


def _close(coro: Any) -> None:
    for _ in range(_MOST_CLEAN_UPS):
        with contextlib.suppress(BaseException):  # no loop runs any more, so its clean-up fails
            coro.close()
            return
