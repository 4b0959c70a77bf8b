"""Execute bulk runs in this process, and take over abandoned runs of other dashboards."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from conquiet.core.identity import hostname
from conquiet.dashboard.servers import Servers
from conquiet.errors import ConquietError
from conquiet.management.audit import record_action
from conquiet.management.bulk_runs import BulkRun, BulkRuns

T = TypeVar("T")

_ADOPT_S: Final = 3.0


class RunExecutor:
    """Executes runs in tasks of the dashboard's event loop.

    Args:
        servers: Connects to Redis.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._owner = f"dashboard-{hostname()}-{os.getpid()}-{id(self):x}"
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._adopted_at = float("-inf")

    async def query(self, work: Callable[[BulkRuns], Awaitable[T]]) -> T:
        """Return ``await work(runs)``, within the time limit of a page."""
        return await self._servers.redis_async(lambda client: work(BulkRuns(client, self._owner)))

    def start(self, run_id: str) -> None:
        """Execute a run. If this process is executing it already, execute it again afterwards.

        A page shows a run as counted a moment before the counting task has ended. A run that is confirmed in that
        moment would otherwise wait for the next search for abandoned runs, which only runs while pages are requested.
        """
        if run_id in self._tasks:
            self._again.add(run_id)
            return
        task = asyncio.create_task(self._execute(run_id), name=f"conquiet-run-{run_id}")
        self._tasks[run_id] = task
        task.add_done_callback(lambda ended: self._ended(run_id, ended))

    async def adopt(self) -> None:
        """Take over runs that no process executes. Searches at most every three seconds; never raises."""
        if time.monotonic() - self._adopted_at < _ADOPT_S:
            return
        self._adopted_at = time.monotonic()
        with contextlib.suppress(ConquietError, OSError, TimeoutError):
            for run in await self._runs().find_abandoned():
                self.start(run.id)

    async def close(self) -> None:
        """Cancel the tasks. Another dashboard continues the runs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, run_id: str, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(run_id, None)
        if run_id in self._again and not task.cancelled():
            self._again.discard(run_id)
            self.start(run_id)

    async def _execute(self, run_id: str) -> None:
        with contextlib.suppress(ConquietError, OSError):
            ended = await self._runs().execute(run_id)
            if ended is not None:
                with contextlib.suppress(Exception):  # the run stores its result
                    await self._record(ended)

    def _runs(self) -> BulkRuns:
        return BulkRuns(self._servers.async_client(), self._owner)

    async def _record(self, run: BulkRun) -> None:
        facts = {"user": run.user, "action": run.action.value, "target": run.stream, "of": run.audit_id}
        detail = f"run {run.id} {run.state.value}: matched {run.matched}, done {run.done}, skipped {run.skipped}"
        await self._servers.redis(lambda admin: record_action(admin, detail=detail, **facts))
