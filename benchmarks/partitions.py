"""Throughput by number of partitions, beside one plain stream, on one private redis-server.

    python benchmarks/partitions.py [--messages 20000] [--rounds 3]

One process emits and handles; everything runs in turn in each round, and the medians are compared with the plain stream
of the same run. On one server partitions cannot be faster than one stream: this measures what they cost. ``server`` is
the CPU time of redis-server per message.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

import redis.asyncio

from conquiet.processor import NewMessage, PartitionedProcessor, Processor, ProcessorSettings
from conquiet.testing import RedisServer

COUNTS = (1, 2, 4, 8, 16)


async def play(client: Any, stream: str, messages: int, partitions: int | None, *, keyed: bool) -> tuple[float, float]:
    """Return messages per second, and microseconds of the server per message."""
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
        cpu = await cpu_s(client)
        began = time.perf_counter()
        emitting = asyncio.create_task(worker.emit_many(batch))
        await done.wait()
        took = time.perf_counter() - began
        await emitting
        spent = await cpu_s(client) - cpu
    return messages / took, spent / messages * 1e6


async def cpu_s(client: Any) -> float:
    facts = await client.info("cpu")
    return float(facts["used_cpu_sys"]) + float(facts["used_cpu_user"])


async def main() -> None:
    """Run all rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    words = parser.parse_args()
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    with RedisServer() as server:
        client: Any = redis.asyncio.Redis.from_url(server.url, protocol=2)
        for _ in range(words.rounds):
            for keyed in (False, True):
                for partitions in (None, *COUNTS):
                    await client.flushall()
                    name = "plain stream" if partitions is None else f"{partitions} partitions"
                    result = await play(client, "bench", words.messages, partitions, keyed=keyed)
                    found.setdefault((name, keyed), []).append(result)
        await client.aclose()
    print(f"{'':16} {'keys':>5} {'messages/s':>11} {'of plain':>9} {'server us':>10}")
    for (name, keyed), rates in found.items():
        rate = statistics.median(one for one, _ in rates)
        plain = statistics.median(one for one, _ in found["plain stream", keyed])
        spent = statistics.median(one for _, one in rates)
        row = f"{name:16} {'yes' if keyed else 'no':>5} {rate:11.0f} {rate / plain:9.2f} {spent:10.1f}"
        print(row)


if __name__ == "__main__":
    asyncio.run(main())
