"""A scheduler's task that is cancelled ends, at whatever turn of the event loop it is asked."""

import asyncio

import redis.asyncio

from conquiet.queue.client import clone_async
from conquiet.scheduler.ledger import Ledger


async def test_a_cancelled_glance_ends_at_whatever_turn_of_the_loop(redis_url: str, key_prefix: str) -> None:
    client = clone_async(redis.asyncio.Redis.from_url(redis_url))
    ledger = Ledger(client, f"{key_prefix}group")
    await ledger.glance()

    async def go_on() -> None:
        for _ in range(100):
            await ledger.glance()

    went_on = []
    for turns in range(1, 40):
        task = asyncio.create_task(go_on())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            went_on.append(turns)

    await client.aclose()
    assert went_on == []
