"""A block that could not be entered, or that is cancelled, leaves no task behind."""

import asyncio

import pytest

from conquiet.core.background import BackgroundWorker, wait_ready
from conquiet.core.lifecycle import AsyncLifecycle, Health
from conquiet.testing import wait_until_async


class SlowToEnd(BackgroundWorker):
    """A worker that ends some time after it was stopped. Each cancellation is noted."""

    def __init__(self) -> None:
        self.life = AsyncLifecycle("this worker")
        self.released = asyncio.Event()
        self.cancellations = 0
        self.closed = 0

    async def run(self) -> None:
        self.life.start()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancellations += 1
        self.life.finish()

    def health(self) -> Health:
        return Health(status=self.life.status)

    async def close(self) -> None:
        self.life.stop()
        await self.life.wait_ended()
        self.closed += 1


async def test_it_returns_when_ready_and_lets_it_run() -> None:
    ready = asyncio.Event()

    async def work() -> None:
        ready.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(work())
    await wait_ready(running, ready.wait())

    assert not running.done()
    running.cancel()


async def test_the_error_that_ended_the_task_is_raised() -> None:
    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await wait_ready(asyncio.create_task(fail()), asyncio.Event().wait())


async def test_an_end_before_it_was_ready_is_no_error() -> None:
    running = asyncio.create_task(asyncio.sleep(0))

    await wait_ready(running, asyncio.Event().wait())

    assert running.done()  # it was waited for


@pytest.mark.parametrize("error", [None, LookupError(), asyncio.CancelledError()])
async def test_a_cancelled_caller_cancels_it_and_waits_for_its_end(error: BaseException | None) -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for _ in range(5):
                await asyncio.sleep(0)
            steps.append("cleaned up")
            if error is not None:
                raise error from None

    caller = asyncio.create_task(wait_ready(asyncio.create_task(work()), asyncio.Event().wait()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert steps == ["cleaned up"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancelled_block_is_left_only_once_its_worker_has_ended() -> None:
    worker = SlowToEnd()

    async def enter_and_leave() -> None:
        async with worker:
            pass

    leaving = asyncio.create_task(enter_and_leave())
    await wait_until_async(lambda: worker.life.is_stopping)
    for _ in range(2):
        leaving.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    is_left, passed_on = leaving.done(), worker.cancellations
    worker.released.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving

    assert (is_left, passed_on) == (False, 2)
    assert not worker.health().ready
    assert worker.closed == 1, "what it has opened is released"


@pytest.mark.parametrize("steps", [1, 2])
async def test_a_cancelled_entry_does_not_stop_a_worker_that_runs_for_another(steps: int) -> None:
    """It is cancelled before, or just when, the second start is refused."""
    worker = SlowToEnd()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await wait_until_async(lambda: worker.health().ready)

        entering = asyncio.create_task(worker.__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait([entering], timeout=0.5)

        is_running = worker.health().ready
        worker.released.set()
    await asyncio.gather(entering, return_exceptions=True)
    assert is_running
