"""Throughput by number of partitions, beside one plain stream, on one private redis-server or on a cluster's masters.

    python benchmarks/partitions.py [--messages 20000] [--rounds 3] [--masters 3]

One process emits and handles; everything runs in turn in each round, and the medians are compared with the plain stream
of the same run. On one server partitions cannot be faster than one stream: this measures what they cost. ``server`` is
the CPU time of all servers per message, ``busiest`` that of the one that had most to do: a master is full when
``busiest`` times the messages per second reaches a second. Partitions raise that limit.
"""

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import redis.asyncio

from conquiet.processor import NewMessage, PartitionedProcessor, Processor, ProcessorSettings
from conquiet.testing import RedisClusterServer, RedisServer

COUNTS = (1, 2, 4, 8, 16)


Result = tuple[float, float, float]
"""Messages per second, microseconds of all servers per message, and of the busiest one."""


async def play(
    client: Any, servers: Sequence[RedisServer], messages: int, partitions: int | None, *, keyed: bool
) -> Result:
    """Emit and handle all messages."""
    stream = "bench"
    done = asyncio.Event()
    handled = 0

    async def handle(_: Any) -> None:
        nonlocal handled
        handled += 1
        if handled == messages:
            done.set()

    settings = ProcessorSettings(retention=None)
    worker: Any
    if partitions is None:
        worker = Processor(client, [stream], concurrency=100, settings=settings)
    else:
        worker = PartitionedProcessor(client, stream, partitions=partitions, concurrency=100, settings=settings)
    worker.handler("work")(handle)
    batch = [NewMessage("work", {"n": n}, key=f"key-{n % 1000}" if keyed else None) for n in range(messages)]
    async with worker:
        cpu = await cpu_s(servers)
        began = time.perf_counter()
        emitting = asyncio.create_task(worker.emit_many(batch))
        await done.wait()
        took = time.perf_counter() - began
        await emitting
        spent = [after - before for before, after in zip(cpu, await cpu_s(servers), strict=True)]
    return messages / took, sum(spent) / messages * 1e6, max(spent) / messages * 1e6


async def cpu_s(servers: Sequence[RedisServer]) -> list[float]:
    found = []
    for server in servers:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            facts = await client.info("cpu")
        found.append(float(facts["used_cpu_sys"]) + float(facts["used_cpu_user"]))
    return found


@contextlib.asynccontextmanager
async def servers_of(masters: int) -> AsyncIterator[tuple[Any, Sequence[RedisServer]]]:
    """Start one server, or a cluster of masters without replicas; yield a client and the servers."""
    client: Any
    if masters == 0:
        with RedisServer() as server:
            client = redis.asyncio.Redis.from_url(server.url, protocol=2)
            yield client, [server]
            await client.aclose()
        return
    with RedisClusterServer(masters=masters, replicas=0) as cluster:
        client = redis.asyncio.RedisCluster.from_url(cluster.node_url)
        yield client, cluster.nodes
        await client.aclose()


async def main() -> None:
    """Run all rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--masters", type=int, default=0, help="a cluster of so many masters; 0: one server alone")
    words = parser.parse_args()
    found: dict[tuple[str, bool], list[Result]] = {}
    async with servers_of(words.masters) as (client, servers):
        for _ in range(words.rounds):
            for keyed in (False, True):
                for partitions in (None, *COUNTS):
                    for server in servers:
                        server.flush()
                    name = "plain stream" if partitions is None else f"{partitions} partitions"
                    result = await play(client, servers, words.messages, partitions, keyed=keyed)
                    found.setdefault((name, keyed), []).append(result)
    print(f"{'':16} {'keys':>5} {'messages/s':>11} {'of plain':>9} {'server us':>10} {'busiest us':>11}")
    for (name, keyed), results in found.items():
        rate, spent, busiest = (statistics.median(column) for column in zip(*results, strict=True))
        plain = statistics.median(one for one, _, _ in found["plain stream", keyed])
        row = f"{name:16} {'yes' if keyed else 'no':>5} {rate:11.0f} {rate / plain:9.2f} {spent:10.1f} {busiest:11.1f}"
        print(row)


if __name__ == "__main__":
    asyncio.run(main())
