"""A slot in migration, an everyday operation of a healthy cluster, stops no stream."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis
from tests.integration.runtime.conftest import BeatQuickly, MakeEngine, Run

from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import RedisClusterServer, wait_until, wait_until_async


async def test_messages_are_handled_at_every_step_of_a_migration(
    redis_cluster: RedisClusterServer,
    make_engine: MakeEngine,
    run: Run,
    beat_quickly: BeatQuickly,
    seen_to_fall: Callable[[Callable[[], int]], Callable[[], bool]],
) -> None:
    raw = redis.RedisCluster.from_url(redis_cluster.node_url)
    seen: Counter[int] = Counter()
    deliveries: set[int] = set()
    held, release = asyncio.Event(), asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen[message.data["n"]] += 1
        deliveries.add(message.delivery_count)
        if message.data["n"] == 0:
            held.set()
            await release.wait()
            ctx.check_lease()

    def add(number: int) -> None:
        raw.xadd("orders", {"data": json.dumps({"n": number})})

    def handled(count: int) -> Callable[[], bool]:
        return lambda: len(seen) == count

    def idle_ms() -> int:
        rows: Any = raw.xpending_range("orders", "processor", "-", "+", 1)
        return int(rows[0]["time_since_delivered"])

    engine = beat_quickly(make_engine(handler, redis=raw, streams=["orders"], concurrency=4, claim_idle_ms=600_000))
    running = run(engine)
    await asyncio.to_thread(add, 0)
    await held.wait()
    number = 0
    steps = redis_cluster.moving_slot("orders")
    while (step := await asyncio.to_thread(next, steps, None)) is not None:
        for _ in range(5):
            number += 1
            await asyncio.to_thread(add, number)
        await wait_until_async(handled(number + 1))
        if step == "orders":
            # The stream is on the importing node now: only a heartbeat that follows ASK keeps the lease.
            await asyncio.to_thread(wait_until, seen_to_fall(idle_ms))
    release.set()
    await engine.wait_for_active_tasks()
    left = raw.xpending("orders", "processor")["pending"]
    report = await running.stop()
    raw.close()

    assert number >= 15
    assert set(seen.values()) == {1}
    assert deliveries == {1}
    assert left == 0
    assert (report.failed, report.unacknowledged) == (0, ())
