"""Who runs the syncer: a fixed set of tasks for coroutines, a fixed set of threads for plain functions.

Both keep one promise: at most ``concurrency`` messages are in the syncer's hands at once, each is reported exactly once
to ``finish`` (in the loop's thread), and a message whose link was lost before its turn is skipped, because the broker
gives it to somebody again. After a fatal verdict nothing new begins; what waited comes back through ``take_unstarted``.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, Protocol

from conquiet.kernel.cancellation import forget_cancellations, is_ending
from conquiet.rabbit.decrypt import KeyFault
from conquiet.rabbit.delivery import CURRENT, Delivery
from conquiet.rabbit.pipeline import Pipeline, Ready
from conquiet.rabbit.settle import Verdict
from conquiet.rabbit.syncer import DONE, ContractBroken, broken_by, judge

Finish = Callable[[Delivery, Verdict], None]

# Longest stretch for which handlers that never wait may keep the loop from its sockets and heartbeats.
_SLICE_S: Final = 0.005


class Workers(Protocol):
    """What the consumer needs of either kind."""

    def start(self) -> None:
        """Get ready to work."""
        ...

    def submit(self, deliveries: list[Delivery]) -> None:
        """Take deliveries; each starts when somebody is free."""
        ...

    def halt(self) -> None:
        """Begin nothing from now on, for good. Only assigns: for any thread, and for a signal handler."""
        ...

    def take_unstarted(self) -> list[Delivery]:
        """Take back what has not started. Nothing starts afterwards unless it is submitted again."""
        ...

    @property
    def running(self) -> int:
        """How many messages are in the syncer's hands."""
        ...

    def owns_current_task(self) -> bool:
        """Whether the caller is the syncer itself: it cannot wait for its own end."""
        ...

    async def drained(self) -> None:
        """Wait until nothing runs."""
        ...

    def abandon(self) -> int:
        """Tell all workers to end, wait for none, and return how many messages were in the syncer's hands; once."""
        ...

    async def close(self) -> int:
        """End all workers and return how many messages had to be abandoned."""
        ...


class TaskWorkers:
    """Runs an ``async def`` syncer on the event loop.

    There is no task for each message: a worker goes through the buffer for as long as the syncer does not wait, and
    another worker is woken only when it does.
    """

    def __init__(
        self, syncer: Callable[[Any], Awaitable[object]], pipeline: Pipeline, concurrency: int, finish: Finish
    ) -> None:
        self._syncer = syncer
        self._prepare = pipeline.prepare
        self._reads_headers = pipeline.reads_headers
        self._concurrency = concurrency
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Delivery] = deque()
        self._free: list[asyncio.Future[None]] = []
        self._running: set[Delivery] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._owner: asyncio.Task[Any] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._waking = False  # somebody was woken and has not started yet, or is about to be
        self._halted = False
        self._closing = False

    def start(self) -> None:
        """See :class:`Workers`."""
        self._owner = asyncio.current_task()
        self._tasks = [
            self._loop.create_task(self._work(), name=f"conquiet-rabbit-{number}")
            for number in range(self._concurrency)
        ]

    def submit(self, deliveries: list[Delivery]) -> None:
        """See :class:`Workers`."""
        self._buffer += deliveries
        if self._free and not self._waking:
            self._waking = True
            self._wake_one()

    def halt(self) -> None:
        """See :class:`Workers`."""
        self._halted = True

    def take_unstarted(self) -> list[Delivery]:
        """See :class:`Workers`."""
        unstarted = list(self._buffer)
        self._buffer.clear()
        return unstarted

    @property
    def running(self) -> int:
        """See :class:`Workers`."""
        return len(self._running)

    def owns_current_task(self) -> bool:
        """Whether the caller is the syncer itself: it cannot wait for its own end."""
        return asyncio.current_task() in self._tasks

    async def drained(self) -> None:
        """See :class:`Workers`."""
        await self._idle.wait()

    def abandon(self) -> int:
        """See :class:`Workers`. Syncers that still run are cancelled; their messages are settled by nobody."""
        if self._closing:
            return 0
        self._closing = True
        for task in self._tasks:
            task.cancel()
        return len(self._running)

    async def close(self) -> int:
        """See :class:`Workers`."""
        abandoned = self.abandon()
        await asyncio.wait(self._tasks, timeout=1.0) if self._tasks else None
        return abandoned

    def _wake_one(self) -> None:
        while self._buffer and self._free:
            waiter = self._free.pop()
            if not waiter.done():  # its worker takes the flag down when it starts
                waiter.set_result(None)
                return
        self._waking = False

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are in one
        while not self._closing:
            try:
                await self._take_turns(task)
            except asyncio.CancelledError:
                # Any but ours at the end was meant for a syncer that is through: from itself, or from a watchdog that
                # was not called off in time. The worker is not the syncer's. But an event loop that ends waits for all.
                if is_ending(self._owner) or self._closing:
                    raise
                self._waking = False  # it may have been us who were woken
                forget_cancellations(task)

    async def _take_turns(self, task: "asyncio.Task[None]") -> None:
        """Sleep until something is there, then work on it as long as there is something."""
        buffer, free = self._buffer, self._free
        waiter = self._loop.create_future()
        free.append(waiter)
        if buffer and not self._waking and not self._halted:
            self._waking = True
            self._wake_one()
        await waiter
        self._waking = False
        slice_ends = monotonic() + _SLICE_S
        while buffer and not self._halted:
            delivery = buffer.popleft()
            if not delivery.session.is_open:
                delivery.session.skip(delivery)
                continue
            self._running.add(delivery)
            self._idle.clear()
            if buffer and free and not self._waking:
                # Runs only when this worker waits: if the syncer never does, nobody is woken for nothing.
                self._waking = True
                self._loop.call_soon(self._wake_one)
            verdict = await self._handle(delivery)
            self._running.discard(delivery)
            self._finish(delivery, verdict)
            if not self._running:
                self._idle.set()
            if not buffer:
                # Nothing more to gather: one turn of the loop earlier than the scheduled flush.
                delivery.session.flush()
            if monotonic() > slice_ends or task.cancelling():
                await asyncio.sleep(0)  # a cancellation that is still to be raised is raised here, and not in the next
                forget_cancellations(task)
                slice_ends = monotonic() + _SLICE_S

    async def _handle(self, delivery: Delivery) -> Verdict:
        try:
            prepared = self._prepare(delivery.headers if self._reads_headers else None, delivery.body)
        except BaseException as error:  # noqa: BLE001 - a user's model or key store may raise anything, a panic too
            return broken_by(error, who="preparing the message")
        if not isinstance(prepared, Ready):
            return prepared
        CURRENT.set(delivery)
        try:
            return judge(await self._syncer(prepared.message))
        except GeneratorExit:  # the loop itself is being torn down
            raise
        except asyncio.CancelledError as error:
            if self._closing:
                raise
            return broken_by(error)
        except BaseException as error:  # noqa: BLE001 - whatever a syncer raises, SystemExit too, is its contract broken
            return broken_by(error)


class ThreadWorkers:
    """Runs a plain function in threads, so that the loop stays free for heartbeats however long it blocks.

    The threads are daemons: one that hangs must not keep the process from ending after the grace period.
    """

    def __init__(self, syncer: Callable[[Any], object], pipeline: Pipeline, concurrency: int, finish: Finish) -> None:
        self._syncer = syncer
        self._prepare = pipeline.prepare
        self._reads_headers = pipeline.reads_headers
        self._concurrency = concurrency
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._buffer: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        # Everything submitted and not reported. Only the loop's thread touches it, so it needs no lock, and there is
        # no moment at which a delivery is in nobody's hands.
        self._outstanding: set[Delivery] = set()
        self._reports: deque[tuple[Delivery, Verdict | None]] = deque()
        self._report_scheduled = False
        self._unstarted: list[Delivery] = []  # taken by a thread and given back by it
        self._idle = asyncio.Event()
        # Also set by a thread: the loop learns of a fatal verdict, or of a stop, later than the next get() returns.
        self._halted = False
        self._closing = False

    def start(self) -> None:
        """See :class:`Workers`."""
        for number in range(self._concurrency):
            threading.Thread(target=self._work, name=f"conquiet-rabbit-{number}", daemon=True).start()

    def submit(self, deliveries: list[Delivery]) -> None:
        """See :class:`Workers`."""
        self._outstanding.update(deliveries)
        for delivery in deliveries:
            self._buffer.put(delivery)

    def halt(self) -> None:
        """See :class:`Workers`."""
        self._halted = True

    def take_unstarted(self) -> list[Delivery]:
        """See :class:`Workers`."""
        unstarted, self._unstarted = self._unstarted, []
        while not self._closing:  # then only the marks that end the threads are in there
            try:
                delivery = self._buffer.get_nowait()
            except queue.Empty:
                break
            if delivery is not None:
                unstarted.append(delivery)
        self._outstanding.difference_update(unstarted)
        return unstarted

    @property
    def running(self) -> int:
        """See :class:`Workers`."""
        return max(0, len(self._outstanding) - self._buffer.qsize())

    def owns_current_task(self) -> bool:
        """Whether the caller is the syncer itself; plain functions have no task."""
        return False

    async def drained(self) -> None:
        """See :class:`Workers`."""
        while self._outstanding:
            self._idle.clear()
            await self._idle.wait()

    def abandon(self) -> int:
        """See :class:`Workers`. A thread cannot be stopped from outside: what still runs is left behind."""
        if self._closing:
            return 0
        self._closing = True
        for _ in range(self._concurrency):
            self._buffer.put(None)
        return len(self._outstanding)

    async def close(self) -> int:
        """See :class:`Workers`."""
        return self.abandon()

    def _work(self) -> None:
        while (delivery := self._buffer.get()) is not None:
            verdict = None if self._halted or not delivery.session.is_open else self._handle(delivery)
            if verdict is not DONE and isinstance(verdict, ContractBroken | KeyFault):
                self._halted = True
            self._reports.append((delivery, verdict))
            # Two threads may both find it unset: one callback too many finds nothing to do. None is ever missing,
            # because the loop unsets the flag before it looks.
            if not self._report_scheduled:
                self._report_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._report)
                except RuntimeError:  # the loop is closed: we outlived the grace period
                    return

    def _handle(self, delivery: Delivery) -> Verdict:
        try:
            prepared = self._prepare(delivery.headers if self._reads_headers else None, delivery.body)
        except BaseException as error:  # noqa: BLE001 - a user's model or key store may raise anything, a panic too
            return broken_by(error, who="preparing the message")
        if not isinstance(prepared, Ready):
            return prepared
        CURRENT.set(delivery)
        try:
            return judge(self._syncer(prepared.message))
        except BaseException as error:  # noqa: BLE001 - whatever a syncer raises, SystemExit too, is its contract broken
            return broken_by(error)

    def _report(self) -> None:
        self._report_scheduled = False
        while self._reports and not self._closing:  # once closing, what is left counts as abandoned
            delivery, verdict = self._reports.popleft()
            self._outstanding.discard(delivery)
            if verdict is not None:
                self._finish(delivery, verdict)
            elif delivery.session.is_open:
                self._unstarted.append(delivery)
            else:
                delivery.session.skip(delivery)
        if not self._outstanding:
            self._idle.set()
