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
    for wanted in (4, 8, 12, 16, 20):
        enqueue(4)
        await _length(begun, wanted)

    go.set()
    await engine_run.stop()
    assert len(set(begun)) == 20


async def _length(items: list[str], wanted: int) -> None:
    await wait_until_async(lambda: len(items) == wanted)
