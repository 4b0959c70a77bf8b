"""A scheduler's task that is cancelled ends, at whatever turn of the event loop it is asked."""

from typing import Any

import redis.asyncio

from conquiet.queue.client import clone_async
from conquiet.scheduler.ledger import Ledger


async def test_a_cancelled_glance_ends_at_whatever_turn_of_the_loop(
    redis_url: str, key_prefix: str, turns_that_swallow_a_cancellation: Any
) -> None:
    client = clone_async(redis.asyncio.Redis.from_url(redis_url))
    ledger = Ledger(client, f"{key_prefix}group")
    await ledger.glance()

    went_on = await turns_that_swallow_a_cancellation(ledger.glance)

    await client.aclose()
    assert went_on == []
