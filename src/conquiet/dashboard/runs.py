"""Carries bulk runs out in this process, and takes over those of a dashboard that died."""

import asyncio
import contextlib
import os
import time
from typing import Final

from conquiet.core.identity import hostname
from conquiet.dashboard.servers import Servers
from conquiet.errors import ConquietError
from conquiet.management.audit import record_action
from conquiet.management.bulk_runs import BulkRun, BulkRuns

_ADOPT_S: Final = 3.0


class RunCarrier:
    """Works on runs in tasks of the dashboard's event loop.

    Args:
        servers: Asks Redis.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._owner = f"dashboard-{hostname()}-{os.getpid()}-{id(self):x}"
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._adopted_at = float("-inf")

    def runs(self, client: object) -> BulkRuns:
        """Return the runs of a client."""
        return BulkRuns(client, self._owner)  # type: ignore[arg-type]  # given by Servers.redis_async

    def start(self, run_id: str) -> None:
        """Work on a run. If this process does already, look at it once more after that.

        A page shows a run as counted a moment before the task that counted it has ended. A run confirmed in that
        moment would otherwise wait for the next search for abandoned runs, and without a visitor there is none.
        """
        if run_id in self._tasks:
            self._again.add(run_id)
            return
        task = asyncio.create_task(self._carry_out(run_id), name=f"conquiet-run-{run_id}")
        self._tasks[run_id] = task
        task.add_done_callback(lambda ended: self._ended(run_id, ended))

    async def adopt(self) -> None:
        """Take over runs that no process works on. Looks at most every three seconds; never raises."""
        if time.monotonic() - self._adopted_at < _ADOPT_S:
            return
        self._adopted_at = time.monotonic()
        with contextlib.suppress(ConquietError, OSError, TimeoutError):
            admin = self._servers.async_admin()
            for run in await admin.run(lambda client: self.runs(client).find_abandoned()):
                self.start(run.id)

    async def close(self) -> None:
        """Stop after the current steps; another dashboard goes on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, run_id: str, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(run_id, None)
        if run_id in self._again and not task.cancelled():
            self._again.discard(run_id)
            self.start(run_id)

    async def _carry_out(self, run_id: str) -> None:
        ended: list[BulkRun] = []
        with contextlib.suppress(ConquietError, OSError):
            admin = self._servers.async_admin()
            await admin.run(lambda client: self.runs(client).carry_out(run_id, on_end=ended.append))
        for run in ended:
            said = f"run {run.id} {run.state.value}: matched {run.matched}, done {run.done}, skipped {run.skipped}"
            with contextlib.suppress(Exception):  # the run itself says how it ended
                await self._servers.redis(
                    lambda admin, run=run, said=said: record_action(  # type: ignore[misc]
                        admin, user=run.user, action=run.action.value, target=run.stream, detail=said, of=run.audit_id
                    )
                )
