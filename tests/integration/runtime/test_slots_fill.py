"""Every slot gets work, however slowly it comes in."""

import asyncio
from typing import Any

from conquiet.testing import wait_until_async


async def test_messages_that_come_a_few_at_a_time_fill_all_slots_although_no_handler_has_ended(
    make_engine: Any, run: Any, enqueue: Any
) -> None:
    """Whoever fetches stops while a message waits for its slot, and has to be told when it got one."""
    go = asyncio.Event()
    begun: list[str] = []

    async def handler(message: Any, ctx: Any) -> None:
        begun.append(message.id)
        await go.wait()

    engine_run = run(make_engine(handler, concurrency=20))
    for number in range(1, 6):
        enqueue(4)
        await wait_until_async(lambda number=number: len(begun) == 4 * number, timeout_s=5)

    go.set()
    await engine_run.stop()
    assert len(set(begun)) == 20
