"""Run several workers as one: the first failure stops the others and is raised."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from conquiet.core.background import BackgroundWorker
from conquiet.core.functions import is_coroutine_function
from conquiet.core.lifecycle import AsyncLifecycle, Health, Status, Worker
from conquiet.core.worker_pool import current_worker
from conquiet.errors import LifecycleError


class WorkerGroup(BackgroundWorker):
    """Workers that start and end together. Satisfies ``core.lifecycle.Worker``.

    Args:
        workers: Asyncio workers run on the loop, synchronous ones in a thread each.
        background: Workers that do not count for the health: the group is ready even while they fail.
    """

    name = "workers"

    def __init__(self, workers: Sequence[Worker], *, background: Sequence[Worker] = ()) -> None:
        self._needed = tuple(workers)
        self._workers = (*self._needed, *background)
        self._life = AsyncLifecycle("this WorkerGroup")
        self._are_stopped = False

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within their grace period."""
        return sum(worker.abandoned for worker in self._workers)

    async def run(self) -> None:
        """Work until stopped, or until a worker fails.

        Raises:
            Exception: The first failure of a worker, after all of them have ended.
        """
        self._life.start()
        tasks = {asyncio.create_task(self._run_one(worker), name=worker.name): worker for worker in self._workers}
        try:
            await self._run_all(tasks)
        finally:
            self._life.finish()

    async def _run_all(self, tasks: "dict[asyncio.Task[Any], Worker]") -> None:
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            failure = next((task for task in tasks if task.done() and task.exception() is not None), None)
            if failure is not None:
                self.end()
            await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            self.end()
            for task, worker in tasks.items():
                if is_coroutine_function(worker.run):  # a thread cannot be cancelled: it ends because of stop()
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        if failure is None:  # a worker that failed while it was stopped
            failure = next((task for task in tasks if task.exception() is not None), None)
        if failure is not None:
            failure.result()

    def stop(self) -> None:
        """Request the stop of all workers; a second call forces it. May be called from a signal handler."""
        if self._life.request_stop():
            for worker in self._workers:
                worker.stop()
        else:
            self.end()

    def end(self) -> None:
        """Stop all workers, unless they are stopping: a second ``stop()`` would force them."""
        self._life.stop()
        if not self._are_stopped:
            self._are_stopped = True
            for worker in self._workers:
                worker.stop()

    def health(self) -> Health:
        """Return whether all workers do their work, else the reasons of the others. Never raises."""
        states = [(worker.name, worker.health()) for worker in self._needed]
        reasons = [f"{name}: {health.reason}" for name, health in states if not health.ready]
        counts = [health.handled for _, health in states if health.handled is not None]
        return Health(status=self._life.status, reason="; ".join(reasons), handled=sum(counts) if counts else None)

    async def close(self) -> None:
        """Stop all workers, wait for their end, and release their connections. Called by a handler it only stops."""
        self.end()
        if self._life.status is Status.STOPPING and current_worker() is not None:
            return  # the end waits for this handler
        await self._life.wait_ended()
        for worker in self._workers:
            closing = worker.close()
            if inspect.isawaitable(closing):
                await closing

    async def _run_one(self, worker: Worker) -> Any:
        try:
            if is_coroutine_function(worker.run):
                return await worker.run()
            return await asyncio.to_thread(worker.run)
        except LifecycleError:
            # A worker that was stopped before its start refuses to start.
            if not self._life.is_stopping:
                raise
