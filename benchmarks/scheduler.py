"""The scheduler compared with the raw limit and its peers, in one run, interleaved.

    python benchmarks/scheduler.py [--quick]

A private redis-server is started. Only the ratios mean something: they are medians over rounds in which every
contender had its turn. Peers are measured when they can be imported: run this file with the interpreter that
``make bench-peers`` builds (benchmarks/README.md).

Two peers fire: APScheduler 3, whose jobs write the same message by XADD, and taskiq's scheduler, which sends tasks to a
stream. Both want to be the only process that does so: they claim no tick. Celery beat is of the same kind and was not
measured; the cron jobs of arq, SAQ, streaq and docket are run by their workers, and cannot be told from the work.
"""

import argparse
import asyncio
import logging
import os
import statistics
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import redis.asyncio
from cronsim import CronSim

from conquiet.core.json_codec import encode_payload
from conquiet.processor.envelope import Envelope, to_payload
from conquiet.scheduler import Cron, Every, ScheduleEntry, Scheduler
from conquiet.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 3, 1, tzinfo=UTC)
START_MS = round(START.timestamp() * 1_000)
EXPRESSIONS = ("*/5 * * * *", "30 2 * * *", "0 9 * * MON-FRI")


# ---------------------------------------------------------------- the next due time
def next_conquiet(expression: str, count: int) -> None:
    cron, instant = Cron(expression, "Europe/Berlin"), START_MS
    for _ in range(count):
        instant = cron.next_after(instant) or 0


def next_cronsim(expression: str, count: int) -> None:
    """As one would use it: from the last due time to the next."""
    moment = START.astimezone(BERLIN)
    for _ in range(count):
        moment = next(CronSim(expression, moment))


def next_croniter(expression: str, count: int) -> None:
    from croniter import croniter  # type: ignore[import-untyped, import-not-found, unused-ignore]

    moment = START.astimezone(BERLIN)
    for _ in range(count):
        moment = croniter(expression, moment).get_next(datetime)


def next_apscheduler(expression: str, count: int) -> None:
    from apscheduler.triggers.cron import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
        CronTrigger,
    )

    trigger, moment = CronTrigger.from_crontab(expression, timezone=BERLIN), START.astimezone(BERLIN)
    for _ in range(count):
        moment = trigger.get_next_fire_time(moment, moment)


def due_times(rounds: int, count: int) -> None:
    contenders: dict[str, Callable[[str, int], None]] = {"conquiet": next_conquiet, "cronsim": next_cronsim}
    for name, peer in {"croniter": next_croniter, "apscheduler": next_apscheduler}.items():
        try:
            peer(EXPRESSIONS[0], 1)
        except ImportError:
            print(f"  {name}: not installed, left out")
        else:
            contenders[name] = peer
    for expression in EXPRESSIONS:
        took: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, contender in contenders.items():
                started = time.perf_counter()
                contender(expression, count)
                took[name].append((time.perf_counter() - started) / count * 1e6)
        ours = statistics.median(took["conquiet"])
        shown = ", ".join(
            f"{name} {statistics.median(each):.0f} µs (x{statistics.median(each) / ours:.1f})"
            for name, each in took.items()
        )
        print(f"  {expression:18} {shown}")


# ---------------------------------------------------------------- many entries due at one moment
async def fire_raw(url: str, count: int) -> float:
    """The limit: the same messages, encoded, in pipelines of 100, with no claim and no ledger."""
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.flushall()
        started = time.perf_counter()
        for first in range(0, count, 100):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, first + 100):
                message = to_payload(Envelope("beat", f"entry-{number}@{START_MS}", {"n": number}, emitted_ms=START_MS))
                pipeline.xadd("beats", {"data": encode_payload(message, max_bytes=1_000_000)})
            await pipeline.execute()
        return count / (time.perf_counter() - started)


async def fire_hosts(url: str, count: int, hosts: int) -> float:
    now = START_MS
    entries = [ScheduleEntry(f"entry-{number}", Every(3600), "beat", "beats", {"n": number}) for number in range(count)]
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.flushall()
        schedulers = [Scheduler(client, entries, now_ms=lambda: now) for _ in range(hosts)]
        await schedulers[0]._firer.store_declared()  # noqa: SLF001 - what start() does first, left out of the time
        for scheduler in schedulers:
            await scheduler.tick()
        now += 3_600_000
        started = time.perf_counter()
        await asyncio.gather(*(scheduler.tick() for scheduler in schedulers))
        took = time.perf_counter() - started
        if await client.xlen("beats") != count:
            raise RuntimeError("a tick was lost or fired twice")
        for scheduler in schedulers:
            await scheduler.close()
    return count / took


class Burst:
    """Times what a peer sends, from the first to the last of them: it decides by itself when to begin."""

    def __init__(self, count: int) -> None:
        self.count, self.seen = count, 0
        self.began = self.ended = 0.0
        self.all_sent = asyncio.Event()
        self.at = datetime.now(UTC) + timedelta(seconds=1.5)

    def note(self) -> None:
        self.began = self.began or time.perf_counter()
        self.seen += 1
        if self.seen == self.count:
            self.ended = time.perf_counter()
            self.all_sent.set()

    async def rate(self) -> float:
        async with asyncio.timeout(60):
            await self.all_sent.wait()
        return (self.count - 1) / (self.ended - self.began)


async def fire_apscheduler(url: str, count: int) -> float:
    scheduler = import_module("apscheduler.schedulers.asyncio").AsyncIOScheduler(timezone=UTC)
    # All jobs write at once: without a pool that lets them wait they would run out of connections.
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=20)
    async with redis.asyncio.Redis.from_pool(pool) as client:
        await client.flushall()
        burst = Burst(count)

        async def fire(number: int) -> None:
            message = to_payload(Envelope("beat", f"entry-{number}@{START_MS}", {"n": number}, emitted_ms=START_MS))
            await client.xadd("beats", {"data": encode_payload(message, max_bytes=1_000_000)})
            burst.note()

        for number in range(count):
            scheduler.add_job(fire, "date", run_date=burst.at, args=[number], misfire_grace_time=60)
        scheduler.start()
        try:
            return await burst.rate()
        finally:
            scheduler.shutdown(wait=False)


async def fire_taskiq(url: str, count: int) -> float:
    library, plugin = import_module("taskiq"), import_module("taskiq_redis")
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.flushall()
    broker = plugin.RedisStreamBroker(url, queue_name="beats")
    source = plugin.ListRedisScheduleSource(url)
    burst = Burst(count)
    kick = broker.kick

    async def kick_and_note(message: Any) -> None:
        await kick(message)
        burst.note()

    broker.kick = kick_and_note

    async def beat(number: int) -> None: ...

    task = broker.task(task_name="beat")(beat)
    await broker.startup()
    for number in range(count):
        await task.schedule_by_time(source, burst.at, number)
    running = asyncio.create_task(
        import_module("taskiq.api").run_scheduler_task(library.TaskiqScheduler(broker, [source]))
    )
    try:
        return await burst.rate()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await broker.shutdown()


async def fires(url: str, rounds: int, count: int) -> None:
    contenders: dict[str, Callable[[], Awaitable[float]]] = {
        "raw pipeline": lambda: fire_raw(url, count),
        "one host": lambda: fire_hosts(url, count, 1),
        "three hosts racing": lambda: fire_hosts(url, count, 3),
    }
    peers: set[str] = set()
    for module, name, peer in (
        ("apscheduler", "APScheduler and XADD", fire_apscheduler),
        ("taskiq_redis", "taskiq scheduler", fire_taskiq),
    ):
        try:
            import_module(module)
        except ImportError:
            print(f"  {name}: not installed, left out")
        else:
            contenders[name] = partial(peer, url, count // 4)
            peers.add(name)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name, contender in contenders.items():
            if turn == 0 or name not in peers:  # a peer takes its time to begin; one turn of it is enough
                rates[name].append(await contender())
    limit = statistics.median(rates["raw pipeline"])
    for name, each in rates.items():
        print(f"  {name:20} {statistics.median(each):8.0f} ticks/s  {statistics.median(each) / limit:.2f} of raw")


# ---------------------------------------------------------------- lateness at rest
async def past_the_tenth(client: redis.asyncio.Redis) -> list[int]:
    entries: Any = await client.xrange("beats")
    return [int(entry_id.split(b"-")[0]) % 100 for entry_id, _ in entries]


async def lateness(url: str, seconds: float) -> None:
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.flushall()
        entry = ScheduleEntry("beat", Every(0.1), "beat", "beats")
        async with Scheduler(client, [entry]), Scheduler(client, [entry]), Scheduler(client, [entry]):
            await asyncio.sleep(seconds)
        ours = await past_the_tenth(client)

        await client.delete("beats")
        end = time.time() + seconds
        while time.time() < end:  # the limit: sleep to the next tenth, write
            await asyncio.sleep(0.1 - time.time() % 0.1)
            await client.xadd("beats", {"data": "{}"})
        raw = await past_the_tenth(client)
    for name, late in (("three hosts", ours), ("sleep and XADD", raw)):
        ranked = sorted(late)
        print(
            f"  {name:20} p50 {ranked[len(ranked) // 2]} ms, p99 {ranked[int(len(ranked) * 0.99)]} ms, n={len(ranked)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    quick = parser.parse_args().quick
    rounds = 3 if quick else 7
    logging.disable(logging.CRITICAL)  # peers tell of every tick
    print(f"load before: {os.getloadavg()[0]:.1f}")
    print("next due time, Europe/Berlin")
    due_times(rounds, 300 if quick else 1_000)
    with RedisServer() as server:
        print("many entries due at one moment")
        asyncio.run(fires(server.url, rounds, 1_000 if quick else 2_000))
        print("lateness at rest, a tick every 100 ms (server's clock, whole ms)")
        asyncio.run(lateness(server.url, 5 if quick else 20))


if __name__ == "__main__":
    main()
