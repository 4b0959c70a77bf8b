"""A cancelled task of the scheduler ends, at any turn of the event loop."""

from collections.abc import Awaitable, Callable

import redis.asyncio

from conquiet.redis_transport.client import clone_async
from conquiet.scheduler.schedule_store import ScheduleStore

Call = Callable[[], Awaitable[object]]


async def test_a_cancelled_snapshot_ends_at_any_turn_of_the_loop(
    redis_url: str, key_prefix: str, turns_that_swallow_a_cancellation: Callable[[Call], Awaitable[list[int]]]
) -> None:
    client = clone_async(redis.asyncio.Redis.from_url(redis_url))
    store = ScheduleStore(client, f"{key_prefix}group")
    await store.snapshot()

    went_on = await turns_that_swallow_a_cancellation(store.snapshot)

    await client.aclose()
    assert went_on == []
