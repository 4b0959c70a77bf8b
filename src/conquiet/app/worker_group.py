"""Run several workers as one: the first failure stops the others and is raised."""

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conquiet.core.functions import is_coroutine_function
from conquiet.core.lifecycle import Worker, handled_by
from conquiet.errors import LifecycleError


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """Whether workers do their work.

    Attributes:
        ready: True while all of them do.
        reason: Why not; empty while they do.
        handled: Messages that those of them have handled that count them.
    """

    ready: bool
    reason: str = ""
    handled: int = 0


class WorkerGroup:
    """Workers that start and end together. A group runs once.

    Args:
        workers: Asyncio workers run on the loop, synchronous ones in a thread each.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = tuple(workers)
        self._stopping = False

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within their grace period."""
        return sum(worker.abandoned for worker in self._workers)

    async def run(self) -> None:
        """Work until stopped, or until a worker fails.

        Raises:
            Exception: The first failure of a worker, after all of them have ended.
        """
        if self._stopping:
            return
        tasks = {asyncio.create_task(self._run_one(worker), name=worker.name): worker for worker in self._workers}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            failure = next((task for task in tasks if task.done() and task.exception() is not None), None)
            if failure is not None and not self._stopping:
                self.stop()
            await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            self.stop()
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
        self._stopping = True
        for worker in self._workers:
            worker.stop()

    def health(self) -> WorkerHealth:
        """Return whether all workers do their work, else the reason of each worker that does not."""
        needed = [worker for worker in self._workers if not getattr(worker, "is_background", False)]
        states = [(worker.name, worker.health()) for worker in needed]
        reasons = [f"{name}: {health.reason}" for name, health in states if not health.ready]
        handled = sum(handled_by(worker) or 0 for worker in self._workers)
        return WorkerHealth(ready=not reasons, reason="; ".join(reasons), handled=handled)

    async def close(self) -> None:
        """Release the connections of all workers."""
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
            # A worker that was stopped between the check above and its start refuses to start.
            if not self._stopping:
                raise
