"""Run the syncer: coroutines in the worker pool, plain functions in a fixed set of threads.

Both run at most ``concurrency`` messages concurrently and report each one exactly once to ``finish``, in the event
loop's thread. If the link is lost before a message starts, the message is skipped, because the broker delivers it
again. Each message has its own context variables. After a fatal verdict no message starts; ``take_unstarted`` returns
the waiting ones.
"""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from conquiet.core import tracing
from conquiet.core.worker_pool import WorkerPool, start_in_context
from conquiet.rabbit.delivery import CURRENT, Delivery
from conquiet.rabbit.pipeline import Pipeline, Ready
from conquiet.rabbit.proca.decrypt import KeyFault
from conquiet.rabbit.settle import Verdict
from conquiet.rabbit.spans import process_span, record_report
from conquiet.rabbit.syncer import DONE, ContractBroken, Interruption, interpret_error, interpret_result

T = TypeVar("T")

RunResult = Verdict | Interruption
Finish = Callable[[Delivery, RunResult], None]


class SyncerWorkers(ABC):
    """Runs a syncer. Each kind of syncer has its own subclass.

    Args:
        syncer: Called with each message, or with a list of them.
        pipeline: Prepares each message.
        concurrency: Maximum number of concurrent messages (or batches).
        finish: Called with each delivery and its report, in the loop's thread.
    """

    def __init__(self, syncer: Callable[[Any], Any], pipeline: Pipeline, concurrency: int, finish: Finish) -> None:
        self._syncer = syncer
        self._prepare = pipeline.prepare
        self._reads_headers = pipeline.reads_headers
        self._concurrency = concurrency
        self._finish = finish
        self._unstarted: list[Delivery] = []  # taken by a worker after the halt
        self._halted = False
        self._closing = False

    @abstractmethod
    def start(self) -> None:
        """Start the workers. Called in the event loop."""

    @abstractmethod
    def submit(self, deliveries: list[Delivery]) -> None:
        """Queue deliveries. Each starts when a worker is free."""

    def halt(self) -> None:
        """Start no message from now on. Only assigns, so any thread and a signal handler may call it."""
        self._halted = True

    def take_unstarted(self) -> list[Delivery]:
        """Remove and return unstarted deliveries."""
        unstarted, self._unstarted = self._unstarted, []
        return unstarted + self._take_queued()

    @abstractmethod
    def _take_queued(self) -> list[Delivery]:
        """Remove and return the deliveries that no worker has taken."""

    @abstractmethod
    def owns_current_task(self) -> bool:
        """Return whether the syncer is calling: it cannot wait for its own end."""

    @abstractmethod
    async def drained(self) -> None:
        """Wait until no message is running."""

    @abstractmethod
    def _abort(self) -> int:
        """End all workers without waiting. Return the number of messages in the syncer."""

    async def close(self) -> int:
        """End all workers and return the number of abandoned messages."""
        self._closing = True
        return self._abort()

    def _prepared(self, delivery: Delivery) -> Ready | RunResult:
        """Return the message for the syncer, or the report of a message that does not reach it."""
        try:
            return self._prepare(delivery.headers if self._reads_headers else None, delivery.body)
        except BaseException as error:  # noqa: BLE001 - a model or a key store may raise anything, SystemExit too
            return interpret_error(error, who="preparing the message")


class PoolWorkers(SyncerWorkers, Generic[T]):
    """The common part of the workers that run messages or batches in a worker pool, on the event loop."""

    _pool: WorkerPool[T]

    def start(self) -> None:
        """See :class:`SyncerWorkers`."""
        self._pool.start()

    def owns_current_task(self) -> bool:
        """See :class:`SyncerWorkers`."""
        return self._pool.owns_current_task()

    async def drained(self) -> None:
        """See :class:`SyncerWorkers`."""
        await self._pool.wait_idle()

    def _abort(self) -> int:
        """Cancel running syncers; their messages stay unsettled."""
        return self._pool.abort()

    async def close(self) -> int:
        """See :class:`SyncerWorkers`."""
        abandoned = await super().close()
        await self._pool.close(timeout_s=1.0)
        return abandoned


class TaskWorkers(PoolWorkers[Delivery]):
    """Runs an ``async def`` syncer on the event loop, in the worker pool."""

    def __init__(self, syncer: Callable[[Any], Any], pipeline: Pipeline, concurrency: int, finish: Finish) -> None:
        super().__init__(syncer, pipeline, concurrency, finish)
        # The broker sends messages without a request, so a free worker requests none.
        self._pool = WorkerPool(concurrency, self._run, on_free=lambda: None)
        self._runs_last = self._pool.runs_last

    def submit(self, deliveries: list[Delivery]) -> None:
        """See :class:`SyncerWorkers`."""
        self._pool.put(deliveries)

    def _take_queued(self) -> list[Delivery]:
        return self._pool.drain_queue()

    def _run(self, delivery: Delivery) -> Awaitable[None] | None:
        if self._halted:
            self._unstarted.append(delivery)
        elif not delivery.session.is_open:
            delivery.session.skip(delivery)
        else:
            return start_in_context(self._handle(delivery))
        return None

    async def _handle(self, delivery: Delivery) -> None:
        report = self._prepared(delivery)
        if isinstance(report, Ready):
            CURRENT.set(delivery)
            try:
                if tracing.active is None:
                    report = interpret_result(await self._syncer(report.message))
                else:
                    with process_span(tracing.active, delivery) as span:
                        report = interpret_result(await self._syncer(report.message))
                        record_report(span, report)
            except GeneratorExit:  # the event loop is being torn down
                raise
            except asyncio.CancelledError as error:
                if self._closing:
                    raise
                report = interpret_error(error)
            except BaseException as error:  # noqa: BLE001 - a syncer may raise anything, SystemExit too
                report = interpret_error(error)
        self._finish(delivery, report)
        if self._runs_last():  # a later message would send its acknowledgement too
            delivery.session.flush()  # one iteration of the loop before the scheduled flush


class ThreadWorkers(SyncerWorkers):
    """Runs a plain function in threads, so that a blocking call never delays a heartbeat.

    The threads are daemons: a hanging thread must not keep the process from ending after the grace period.
    """

    def __init__(self, syncer: Callable[[Any], Any], pipeline: Pipeline, concurrency: int, finish: Finish) -> None:
        super().__init__(syncer, pipeline, concurrency, finish)
        self._buffer: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        # All deliveries submitted and not reported. Only the loop's thread uses it, so it needs no lock.
        self._outstanding: set[Delivery] = set()
        self._reports: deque[tuple[Delivery, RunResult | None]] = deque()
        self._report_scheduled = False
        self._idle = asyncio.Event()

    def start(self) -> None:
        """See :class:`SyncerWorkers`."""
        self._loop = asyncio.get_running_loop()
        for number in range(self._concurrency):
            threading.Thread(target=self._work, name=f"conquiet-rabbit-{number}", daemon=True).start()

    def submit(self, deliveries: list[Delivery]) -> None:
        """See :class:`SyncerWorkers`."""
        self._outstanding.update(deliveries)
        for delivery in deliveries:
            self._buffer.put(delivery)

    def _take_queued(self) -> list[Delivery]:
        queued: list[Delivery] = []
        while not self._closing:  # once closing, leave the marks in the queue that end the threads
            try:
                delivery = self._buffer.get_nowait()
            except queue.Empty:
                break
            if delivery is not None:
                queued.append(delivery)
        self._outstanding.difference_update(queued)
        return queued

    def owns_current_task(self) -> bool:
        """Return False: plain functions have no task."""
        return False

    async def drained(self) -> None:
        """See :class:`SyncerWorkers`."""
        while self._outstanding:
            self._idle.clear()
            await self._idle.wait()

    def _abort(self) -> int:
        """End the threads. A thread cannot be cancelled: it runs until it returns or the process ends."""
        for _ in range(self._concurrency):
            self._buffer.put(None)
        return len(self._outstanding)

    def _work(self) -> None:
        while (delivery := self._buffer.get()) is not None:
            skipped = self._halted or not delivery.session.is_open
            verdict = None if skipped else copy_context().run(self._handle, delivery)
            if verdict is not DONE and isinstance(verdict, ContractBroken | KeyFault):
                self._halted = True  # here too: the next get() may return before the loop handles the verdict
            self._reports.append((delivery, verdict))
            # Two threads may both find the flag unset; then the second callback has nothing to do. No report is left
            # behind, because the loop unsets the flag before it reads the reports.
            if not self._report_scheduled:
                self._report_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._report)
                except RuntimeError:  # the loop is closed: this thread outlived the grace period
                    return

    def _handle(self, delivery: Delivery) -> RunResult:
        prepared = self._prepared(delivery)
        if not isinstance(prepared, Ready):
            return prepared
        CURRENT.set(delivery)
        try:
            if tracing.active is None:
                return interpret_result(self._syncer(prepared.message))
            with process_span(tracing.active, delivery) as span:
                report = interpret_result(self._syncer(prepared.message))
                record_report(span, report)
                return report
        except BaseException as error:  # noqa: BLE001 - a syncer may raise anything, SystemExit too
            return interpret_error(error)

    def _report(self) -> None:
        self._report_scheduled = False
        while self._reports and not self._closing:  # once closing, the remaining messages count as abandoned
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
