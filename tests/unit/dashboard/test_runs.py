"""Bulk runs are carried out in this process."""

import asyncio

from conquiet.dashboard.runs import RunExecutor
from conquiet.dashboard.servers import Servers
from conquiet.dashboard.settings import DashboardSettings


class Counting(RunExecutor):
    """Notes when it begins to work on a run, and ends when it may."""

    def __init__(self) -> None:
        super().__init__(Servers(DashboardSettings(redis_url="redis://127.0.0.1:1/0")))
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.may_end = asyncio.Event()

    async def _execute(self, run_id: str) -> None:
        self.begun.put_nowait(run_id)
        await self.may_end.wait()


async def test_a_run_confirmed_before_its_counting_task_ended_is_carried_out() -> None:
    """The page shows "counted" a moment before the task has ended. Without a second check the run would stop."""
    carrier = Counting()
    carrier.start("run-1")
    assert await carrier.begun.get() == "run-1"

    carrier.start("run-1")
    carrier.start("run-1")
    carrier.may_end.set()

    assert await asyncio.wait_for(carrier.begun.get(), 60) == "run-1"
    await carrier.close()
    assert carrier.begun.empty()


async def test_a_closed_dashboard_begins_nothing_more() -> None:
    carrier = Counting()
    carrier.start("run-1")
    await carrier.begun.get()
    carrier.start("run-1")

    await carrier.close()
    await asyncio.sleep(0)

    assert carrier.begun.empty()
