"""The cost of an idle worker for the masters of a cluster: at most two commands a second for each slot in use.

The test counts commands that the masters receive (MONITOR), without the commands of scripts. Passes over an idle stream
become rarer within a quarter of a minute. ``make torture`` waits for that; otherwise the first seconds are counted,
which cost a little more.
"""

import asyncio
import os
import time
from collections import Counter

import redis.asyncio

from conquiet.processor import JobContext, PartitionedProcessor
from conquiet.processor.partitions import partition_name
from conquiet.testing import RedisClusterServer

PARTITIONS = 8
SETTLE_S, COUNT_S, MOST = (16.0, 20.0, 2.0) if os.environ.get("CONQUIET_TORTURE") == "1" else (2.0, 6.0, 2.5)


async def test_an_idle_slot_costs_few_commands_a_second(redis_cluster: RedisClusterServer) -> None:
    client = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)
    worker = PartitionedProcessor(client, "idle", partitions=PARTITIONS, concurrency=8)

    @worker.handler("pay")
    async def pay(_: JobContext) -> None: ...

    names = [partition_name("idle", index) for index in range(PARTITIONS)]
    seen: Counter[str] = Counter()
    began = 0.0

    async def watch(url: str) -> None:
        async with redis.asyncio.Redis.from_url(url) as watcher, watcher.monitor() as monitor:
            async for event in monitor.listen():
                if began and event["client_type"] != "lua" and "idle" in event["command"]:
                    seen[event["command"].split()[0]] += 1

    async with worker:
        urls = {redis_cluster.master_of(name).url for name in names}
        watching = [asyncio.create_task(watch(url)) for url in urls]
        await asyncio.sleep(SETTLE_S)
        began = time.monotonic()
        await asyncio.sleep(COUNT_S)
        took_s = time.monotonic() - began
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    await client.aclose()

    assert seen["XREADGROUP"] > 0
    assert seen.total() / took_s / PARTITIONS <= MOST, seen
