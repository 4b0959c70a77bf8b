"""Does a long line of one tenant delay another's job, and do lower priorities get their quarter?

    python benchmarks/fairness.py

First: the latency of single jobs of one tenant, alone, and beside a tenant with 100,000 waiting jobs; all jobs take 20
ms. Promised is at most twice the latency alone. Then: the share of a lower stream while a higher one is full, at
concurrency 1, 4, 8, 16 and 50. Promised is a quarter. Exit code 1 if one of the two does not hold.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from typing import Any

import redis.asyncio

from conquiet.processor import NewMessage, Processor
from conquiet.runtime import RuntimeSettings
from conquiet.testing import RedisServer, wait_until_async

JOB_S = 0.02
CONCURRENCIES = (1, 4, 8, 16, 50)


async def latencies(url: str, waiting: int, singles: int, concurrency: int) -> list[float]:
    """Return the time from emit to the end, in ms, of single jobs emitted one after the other."""
    async with redis.asyncio.Redis.from_url(url) as client:
        stream = f"tenants-{waiting}-{concurrency}"
        processor = Processor(client, [stream], concurrency=concurrency)
        done: dict[str, asyncio.Event] = {}

        @processor.handler("work")
        async def work(ctx: Any) -> None:
            await asyncio.sleep(JOB_S)
            if ctx.key == "small":
                done[ctx.id].set()

        large = [NewMessage("work", key="large") for _ in range(waiting)]
        if large:
            await processor.emit_many(large)
        took: list[float] = []
        async with processor:
            for number in range(singles):
                done[f"m{number}"] = asyncio.Event()
                await asyncio.sleep(0.03)
                began = time.perf_counter()
                await processor.emit("work", key="small", id=f"m{number}")
                await done[f"m{number}"].wait()
                took.append((time.perf_counter() - began) * 1_000)
        return took


async def lower_share(url: str, concurrency: int) -> int:
    """Return how many of 1,000 messages were of the lower stream while the higher one was full."""
    async with redis.asyncio.Redis.from_url(url) as client:
        low, high = f"low-{concurrency}", f"high-{concurrency}"
        options = RuntimeSettings(priorities={high: 5})
        processor = Processor(client, [low, high], concurrency=concurrency, runtime=options)
        order: list[str] = []

        @processor.handler("work")
        async def work(ctx: Any) -> None:
            order.append(ctx.delivery.message.stream)
            await asyncio.sleep(0)

        for stream in (low, high):
            await processor.emit_many([NewMessage("work") for _ in range(1_200)], stream=stream)
        async with processor:
            await wait_until_async(lambda: len(order) == 2_400, timeout_s=120)
        return order[400:1_400].count(low)


def rounded(took: list[float]) -> dict[str, float]:
    """Return median and p95."""
    return {"median_ms": round(statistics.median(took), 1), "p95_ms": round(statistics.quantiles(took, n=20)[18], 1)}


async def main(options: argparse.Namespace) -> int:
    found: dict[str, Any] = {"waiting": options.waiting, "job_ms": JOB_S * 1_000}
    holds = True
    with RedisServer() as server:
        for concurrency in (1, 4):
            alone = await latencies(server.url, 0, options.singles, concurrency)
            beside = await latencies(server.url, options.waiting, options.singles, concurrency)
            ratio = statistics.median(beside) / statistics.median(alone)
            holds = holds and ratio <= 2.0
            found[f"concurrency {concurrency}"] = {
                "alone": rounded(alone), "beside": rounded(beside), "ratio": round(ratio, 2),
            }  # fmt: skip
        shares = {concurrency: await lower_share(server.url, concurrency) for concurrency in CONCURRENCIES}
    found["lower_of_1000"] = shares
    found["load"] = round(os.getloadavg()[0], 1)
    holds = holds and all(220 <= share <= 280 for share in shares.values())
    print(json.dumps(found | {"ok": holds}, indent=1))
    return 0 if holds else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fairness by key, and priorities.")
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--singles", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="10,000 waiting jobs, 20 single ones")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.waiting, chosen.singles = 10_000, 20
    sys.exit(asyncio.run(main(chosen)))
