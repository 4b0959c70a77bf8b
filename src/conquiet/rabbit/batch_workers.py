"""Run a batch syncer: ``syncer(messages)`` with a list, and a verdict for each delivery.

    deliveries ──▶ gathered by size and time ──▶ prepare each ──▶ syncer(prepared messages) ──▶ a verdict for each
                                                     └─ not readable: its own verdict

False, or an error, means that the whole call failed. The batch is then halved until the failing message runs alone; the
result or error of that call is its verdict. A redelivered message may have killed a process. If the queue counts
deliveries, the batch size of such a message is halved for each delivery; if it does not, the message runs alone.

See docs/decisions/0021 for the settlement of a message by its verdict.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from conquiet.core import tracing
from conquiet.core.batch_run import BatchRun
from conquiet.core.batching import BatchAssembler, BatchSettings
from conquiet.core.functions import is_coroutine_function
from conquiet.core.worker_pool import WorkerPool, start_in_context
from conquiet.rabbit.batch_results import CURRENT_BATCH, BrokenError, failure_of, outcomes_of, report_of
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.pipeline import Pipeline, Ready
from conquiet.rabbit.spans import batch_span
from conquiet.rabbit.syncer import ContractBroken
from conquiet.rabbit.workers import Finish, PoolWorkers

Member = tuple[Delivery, Any]
"""A delivery and its message."""


@dataclass(slots=True)
class _PooledBatch:
    """Deliveries that are handled together. See ``BatchAssembler`` for ``due_at``."""

    size: Hashable
    deliveries: list[Delivery]
    due_at: float | None


class BatchWorkers(PoolWorkers[_PooledBatch]):
    """Runs a batch syncer, ``async def`` or plain; see ``SyncerWorkers``.

    Args:
        syncer: Called with a list of messages.
        pipeline: See ``SyncerWorkers``.
        concurrency: See ``SyncerWorkers``.
        finish: See ``SyncerWorkers``.
        settings: How batches are gathered.
    """

    def __init__(
        self,
        syncer: Callable[[list[Any]], Any],
        pipeline: Pipeline,
        concurrency: int,
        finish: Finish,
        settings: BatchSettings,
    ) -> None:
        super().__init__(syncer, pipeline, concurrency, finish)
        self._is_async = is_coroutine_function(syncer)
        self._settings = settings
        self._pool = WorkerPool(concurrency, self._handle, on_free=self._freed)
        self._assembler: BatchAssembler[Delivery] = BatchAssembler(
            lambda size, deliveries, due_at: self._pool.put([_PooledBatch(size, deliveries, due_at)]),
            lambda: self._pool.in_flight < concurrency,
        )
        self._threads: ThreadPoolExecutor | None = None

    def submit(self, deliveries: list[Delivery]) -> None:
        """See ``SyncerWorkers``."""
        for delivery in deliveries:
            size = self._size_for(delivery)
            self._assembler.add(size, delivery, size=size, within_s=self._settings.within_s)

    def _take_queued(self) -> list[Delivery]:
        queued = [delivery for batch in self._pool.drain_queue() for delivery in batch.deliveries]
        return queued + self._assembler.take()

    def _abort(self) -> int:
        super()._abort()
        return sum(len(batch.deliveries) for batch in self._pool.running)

    async def close(self) -> int:
        """See ``SyncerWorkers``."""
        abandoned = await super().close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        return abandoned

    # ------------------------------------------------------------ inside
    def _size_for(self, delivery: Delivery) -> int:
        if not delivery.redelivered:
            return self._settings.size
        count = delivery.facts.delivery_count
        return 1 if count is None else self._settings.size_at(count + 1)

    def _freed(self) -> None:
        if not self._halted:
            self._assembler.deliver_due()

    def _handle(self, batch: _PooledBatch) -> Awaitable[None] | None:
        return start_in_context(self._run_batch(batch))  # preparing a message may set context variables

    async def _run_batch(self, batch: _PooledBatch) -> None:
        await self._run(batch.deliveries)
        self._assembler.ended(batch.size, batch.due_at)

    async def _run(self, deliveries: list[Delivery]) -> None:
        if self._is_halted():
            self._unstarted += deliveries
            return
        members: list[Member] = []
        for delivery in deliveries:
            if not delivery.session.is_open:
                delivery.session.skip(delivery)
                continue
            report = self._prepared(delivery)
            if isinstance(report, Ready):
                members.append((delivery, report.message))
            else:
                self._finish(delivery, report)
        if self._is_halted():  # by a missing key: nothing starts after a fatal verdict
            self._unstarted += [delivery for delivery, _ in members]
        elif members:
            with batch_span([delivery for delivery, _ in members]) as span:
                outcomes = await BatchRun(members, self._call).run()
                tracing.record_batch(span, [failure_of(outcome) for outcome in outcomes])
            for (delivery, _), outcome in zip(members, outcomes, strict=True):
                self._finish(delivery, report_of(outcome))
            members[0][0].session.flush()

    def _is_halted(self) -> bool:
        return self._halted  # can change whenever a verdict is reported

    async def _call(self, members: list[Member]) -> list[Any] | None:
        messages = [message for _, message in members]
        context = contextvars.copy_context()
        context.run(CURRENT_BATCH.set, [delivery for delivery, _ in members])
        loop = asyncio.get_running_loop()
        if self._is_async:
            result = await loop.create_task(self._awaited(messages), context=context)
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="conquiet-rabbit")
            result = await loop.run_in_executor(self._threads, context.run, self._in_thread, messages)
        return outcomes_of(result)

    async def _awaited(self, messages: list[Any]) -> Any:
        try:
            return await self._syncer(messages)
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:
            if self._closing:
                raise
            raise _broken_by(error) from error

    def _in_thread(self, messages: list[Any]) -> Any:
        try:
            return self._syncer(messages)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                raise
            raise _broken_by(error) from error


def _broken_by(error: BaseException) -> BrokenError:
    """Convert an error that would end the event loop (SystemExit), or that no future can hold (StopIteration)."""
    return BrokenError(ContractBroken(f"the syncer raised {type(error).__name__}", error))
