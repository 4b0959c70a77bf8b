"""A context that could not be entered leaves no task behind."""

import asyncio

import pytest

from conquiet.core.background import wait_ready


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
