"""Fixtures of all packages."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

Call = Callable[[], Awaitable[object]]


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
