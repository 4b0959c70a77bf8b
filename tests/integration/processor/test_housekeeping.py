"""A processor keeps its streams short and its group free of dead names by default."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from tests.redis_clients import RawAsyncRedis

from conquiet.processor import JobContext, NewMessage, Processor, ProcessorSettings
from conquiet.queue import housekeeping
from conquiet.redis_transport.ids import parse_id
from conquiet.redis_transport.liveness import housekeeping_key, liveness_key, registry_key
from conquiet.runtime.shard import Shard
from conquiet.testing import wait_until_async

logger = logging.getLogger(__name__)

TORTURE = bool(os.environ.get("CONQUIET_TORTURE"))
SOAK = int(os.environ.get("CONQUIET_SOAK", "5000000" if TORTURE else "20000"))
"""``CONQUIET_SOAK=200000`` makes the soak of a torture shorter."""

DEPLOYS = 50 if TORTURE else 6


def make(client: RawAsyncRedis, stream: str, seen: list[int], **options: Any) -> Processor:
    processor = Processor(client, [stream], concurrency=50, **options)

    @processor.handler("order")
    async def order(ctx: JobContext) -> None:
        seen.append(ctx.data["n"])

    return processor


def orders(numbers: Iterable[int]) -> list[NewMessage]:
    return [NewMessage("order", {"n": n}) for n in numbers]


async def names(client: RawAsyncRedis, stream: str) -> list[str]:
    return [row["name"].decode() for row in await client.xinfo_consumers(stream, "processor")]


async def test_the_stream_is_short_by_default_once_all_is_done(client: RawAsyncRedis, stream: str) -> None:
    seen: list[int] = []
    async with make(client, stream, seen) as processor:
        await processor.emit_many(orders(range(1_000)))
        await wait_until_async(lambda: len(seen) == 1_000)

        async def is_short() -> bool:
            return bool(await client.xlen(stream) == 1)

        await wait_until_async(is_short)

    assert sorted(seen) == list(range(1_000))
    assert not await client.exists(housekeeping_key(stream))


async def test_traffic_trims_although_another_host_holds_the_lease_for_long(client: RawAsyncRedis, stream: str) -> None:
    """Its holder saw a quiet stream, and gets none of the messages that come then."""
    await client.set(housekeeping_key(stream), "another host", px=3_600_000)
    seen: list[int] = []
    async with make(client, stream, seen) as processor:
        await processor.emit_many(orders(range(100)))

        async def is_short() -> bool:
            return bool(len(seen) == 100 and await client.xlen(stream) == 1)

        await wait_until_async(is_short)


async def test_a_new_group_gets_what_other_groups_have_handled(
    client: RawAsyncRedis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Housekeeping that began before the new group exists would trim these entries."""
    first: list[int] = []
    async with make(client, stream, first, group="first", settings=ProcessorSettings(retention=None)) as processor:
        await processor.emit_many(orders(range(20)))
        await wait_until_async(lambda: len(first) == 20)
    opening = Shard.open
    housekeepers: list[str] = []

    async def record_threads(shard: Shard) -> None:
        housekeepers.extend(thread.name for thread in threading.enumerate() if "housekeeper" in thread.name)
        await opening(shard)
        housekeepers.append("the group exists")

    monkeypatch.setattr(Shard, "open", record_threads)
    second: list[int] = []
    async with make(client, stream, second, group="second"):
        await wait_until_async(lambda: len(second) == 20)

    assert housekeepers == ["the group exists"]


async def test_without_retention_nothing_is_removed(client: RawAsyncRedis, stream: str) -> None:
    seen: list[int] = []
    async with make(client, stream, seen, settings=ProcessorSettings(retention=None)) as processor:
        await processor.emit_many(orders(range(100)))
        await wait_until_async(lambda: len(seen) == 100)

    assert await client.xlen(stream) == 100


async def test_a_clean_stop_removes_the_name(client: RawAsyncRedis, stream: str) -> None:
    seen: list[int] = []
    async with make(client, stream, seen) as processor:
        await processor.emit("order", {"n": 1})
        await wait_until_async(lambda: seen == [1])
        assert await names(client, stream) == [processor.consumer_id]

    assert await names(client, stream) == []
    assert not await client.exists(registry_key(stream, "processor"))


async def test_a_stop_with_pending_entries_keeps_the_name(client: RawAsyncRedis, stream: str) -> None:
    """Deleting the consumer would drop the entry from the group."""
    begun = asyncio.Event()
    processor = Processor(client, [stream], consumer_id="left")

    @processor.handler("order")
    async def order(ctx: JobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(processor.start())
    await wait_until_async(lambda: processor.status.value == "running")
    await processor.emit("order", {"n": 1})
    await begun.wait()
    processor.stop()
    processor.stop()
    await running
    await processor.close()

    assert await names(client, stream) == ["left"]
    assert (await client.xpending(stream, "processor"))["pending"] == 1


async def test_names_at_the_end_are_the_live_workers(
    client: RawAsyncRedis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rolling restarts of four workers, every third one killed: its name and its key stay behind."""
    monkeypatch.setattr(housekeeping, "_NAMES_S", 0.1)
    seen: list[int] = []
    live = [make(client, stream, seen, consumer_id=f"deploy-0-{n}") for n in range(4)]
    for one in live:
        await one.__aenter__()
    for deploy in range(1, DEPLOYS + 1):
        for n in range(4):
            await live[0].emit_many(orders([0] * 10))
            ended, live[n] = live[n], make(client, stream, seen, consumer_id=f"deploy-{deploy}-{n}")
            await live[n].__aenter__()
            await ended.__aexit__(None, None, None)
            if n % 3 == 0:  # a killed worker leaves this behind
                dead = f"killed-{deploy}-{n}"
                await client.xgroup_createconsumer(stream, "processor", dead)
                await client.sadd(registry_key(stream, "processor"), dead)
                await client.set(liveness_key(stream, "processor", dead), "gone", px=50)
    await wait_until_async(lambda: len(seen) == DEPLOYS * 40)

    async def only_live() -> bool:
        return set(await names(client, stream)) <= {one.consumer_id for one in live}

    await wait_until_async(only_live)
    for one in live:
        await one.__aexit__(None, None, None)
    assert await names(client, stream) == []


@pytest.mark.timeout(600 + SOAK // 500)
async def test_a_stream_under_traffic_stays_short_despite_a_slow_group(client: RawAsyncRedis, stream: str) -> None:
    """Entries that both groups have handled stay for one second of traffic at most; the slow group gets everything."""
    seen: list[int] = []
    read_slow, last_slow = 0, (0, 0)
    done_and_kept: list[int] = []
    progress: list[tuple[float, int]] = []
    emitted = 0
    await client.xgroup_create(stream, "slow", "0-0", mkstream=True)

    async def read_slowly() -> None:
        nonlocal read_slow, last_slow
        while read_slow < SOAK:
            length, done = await client.xlen(stream), min(read_slow, len(seen))
            progress.append((time.monotonic(), done))
            done_and_kept.append(length - (emitted - done))
            reply = await client.xreadgroup("slow", "one", {stream: ">"}, count=500, block=100)
            if ids := [entry_id for _, entries in reply for entry_id, _ in entries]:
                await client.xack(stream, "slow", *ids)
                # Ids only grow, so each entry is read once. Five million of them would fill the memory.
                for entry_id in map(parse_id, map(bytes.decode, ids)):
                    assert entry_id > last_slow
                    last_slow = entry_id
                read_slow += len(ids)

    began = time.monotonic()
    async with make(client, stream, seen) as processor:
        reading = asyncio.create_task(read_slowly())
        for first in range(0, SOAK, 500):
            await processor.emit_many(orders(range(first, first + 500)))
            emitted += 500
        await wait_until_async(lambda: len(seen) == SOAK and reading.done(), timeout_s=600 + SOAK / 1_000)
        seconds = time.monotonic() - began

        async def is_short() -> bool:
            return bool(await client.xlen(stream) == 1)

        await wait_until_async(is_short)

    busiest = most_in_a_second(progress)
    logger.info(
        "%d messages, %.0f/s, at most %d in a second, %d done and kept",
        SOAK, SOAK / seconds, busiest, max(done_and_kept),
    )  # fmt: skip
    assert sorted(seen) == list(range(SOAK))
    assert read_slow == SOAK
    assert max(done_and_kept) <= busiest + 1_000  # the last batch may be emitted and not yet counted


def most_in_a_second(progress: list[tuple[float, int]]) -> int:
    """The most that was done within one second, of samples in order."""
    most, first = 0, 0
    for at, done in progress:
        while at - progress[first][0] > 1.0:
            first += 1
        most = max(most, done - progress[first][1])
    return most
