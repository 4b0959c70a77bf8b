"""Fixtures of all packages."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop

Call = Callable[[], Awaitable[object]]
RunOnLoop = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture
def turns_that_swallow_a_cancellation() -> Callable[[Call], Awaitable[list[int]]]:
    """Cancel a task after 1 to 39 turns of the event loop; return the turns after which it was not cancelled."""

    async def find(call: Call) -> list[int]:
        async def go_on() -> None:
            for _ in range(100):
                await call()

        went_on = []
        for turns in range(1, 40):
            task = asyncio.create_task(go_on())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                went_on.append(turns)
        return went_on

    return find


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> RunOnLoop:
    """Return a function that runs a coroutine function on one of both event loops."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run(body: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await asyncio.wait_for(body(), 60)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(whole())

    return run


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Switch the garbage collector off for the test."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
