"""Pending entries of other consumers, own pending entries, and entries that were delivered too often."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Pending, Run
from tests.redis_clients import RawRedis

from conquiet.errors import DeliveriesExhaustedError, QueueError
from conquiet.metrics.registry import QUEUE_MESSAGES_DELETED_TOTAL, RUNTIME_EXHAUSTED_TOTAL
from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async
from conquiet.testing.redis import RedisServer


def collector() -> tuple[list[tuple[str, int]], Any]:
    seen: list[tuple[str, int]] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append((message.id, message.delivery_count))

    return seen, handler


def strand(raw: RawRedis, stream: str, count: int, consumer: str = "dead", group: str = "processor") -> list[str]:
    """Let a consumer read entries and die."""
    raw.xgroup_create(stream, group, "0", mkstream=True)
    reply = raw.xreadgroup(group, consumer, {stream: ">"}, count=count)
    return [entry_id.decode() for entry_id, _ in reply[0][1]]


@pytest.mark.spec("CM-001.2", "CM-001.5")
async def test_entries_of_a_dead_consumer_are_claimed_once_they_are_stale(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    enqueue(30)
    lost = strand(raw, stream, 20)
    raw.xclaim(stream, "processor", "dead", 0, lost, idle=3_600_000, justid=True)
    seen, handler = collector()
    raw.config_resetstat()

    # A long claim time, so that no lease is extended, which would also be an XCLAIM.
    running = run(make_engine(handler, claim_idle_ms=60_000, concurrency=4))
    running.engine._shards[0].fetcher._claims._next = {stream: 0.0}
    await wait_until_async(lambda: len(seen) == 30)
    await running.stop()

    counts = dict(seen)
    assert {counts[message_id] for message_id in lost} == {2}
    assert Counter(counts.values()) == {2: 20, 1: 10}
    stats = raw.info("commandstats")
    assert "cmdstat_xautoclaim" in stats
    assert stats["cmdstat_xclaim"]["calls"] == 20  # inside the script that counts the deliveries


@pytest.mark.spec("CM-001.3")
async def test_without_xautoclaim_they_are_found_by_xpending_and_claimed_by_xclaim(
    make_engine: MakeEngine, run: Run, private_redis: Callable[..., RedisServer]
) -> None:
    """A real server on which the operator disabled the command represents a server without it."""
    import redis.asyncio

    server = private_redis(extra_args=["--rename-command", "XAUTOCLAIM", ""])
    raw = redis.Redis.from_url(server.url)
    for number in range(150):
        raw.xadd("s", {"data": f'{{"n":{number}}}'})
    # 130 fresh entries are before the stale entry: a scan that always begins at the front would not reach it.
    raw.xgroup_create("s", "processor", "0")
    reply: Any = raw.xreadgroup("processor", "alive", {"s": ">"}, count=150)
    stale = [entry_id.decode() for entry_id, _ in reply[0][1][130:]]
    raw.xclaim("s", "processor", "dead", 0, stale, idle=3_600_000, justid=True)
    seen, handler = collector()

    client = redis.asyncio.Redis.from_url(server.url)
    running = run(make_engine(handler, redis=client, streams=["s"], claim_idle_ms=60_000, concurrency=4))
    running.engine._shards[0].fetcher._claims._interval_s = 0.05
    running.engine._shards[0].fetcher._claims._next = {"s": 0.0}
    await wait_until_async(lambda: len(seen) == 20)
    await running.stop()
    await client.aclose()

    assert seen == [(message_id, 2) for message_id in stale]
    assert running.errors == []
    assert raw.info("commandstats")["cmdstat_xclaim"]["calls"] > 0
    raw.close()


async def test_stale_work_is_not_starved_by_constant_load(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    enqueue(10)
    lost = set(strand(raw, stream, 10))
    enqueue(500)
    done: set[str] = set()
    stop = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        done.add(message.id)
        if len(done) % 20 == 0 and not stop.is_set():
            enqueue(40)  # never idle
        await asyncio.sleep(0.001)

    running = run(make_engine(handler, claim_idle_ms=200, concurrency=4))
    await wait_until_async(lambda: lost <= done)
    assert raw.xinfo_groups(stream)[0]["lag"] > 0
    stop.set()
    await running.stop()


async def test_own_pending_entries_are_read_again_once_at_the_start(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    enqueue(250)
    lost = strand(raw, stream, 230, consumer="me")
    seen, handler = collector()

    running = run(make_engine(handler, consumer_id="me", claim_idle_ms=60_000, concurrency=8))
    await wait_until_async(lambda: len(seen) == 250)
    await running.stop()

    assert running.engine.health().streams[stream].read == 250
    assert [message_id for message_id, _ in seen[:230]] == lost
    assert Counter(count for _, count in seen) == {2: 230, 1: 20}


@pytest.mark.spec("CM-001.14")
async def test_a_message_delivered_too_often_is_reported_once_and_kept(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    (message_id,) = enqueue(1)
    strand(raw, stream, 1)
    raw.xclaim(stream, "processor", "dead", 0, [message_id], retrycount=3, idle=10_000, justid=True)
    seen, handler = collector()

    running = run(make_engine(handler, claim_idle_ms=60, max_deliveries=3))
    await wait_until_async(lambda: pending()[0]["times_delivered"] >= 6)
    await running.stop()

    assert seen == []
    assert RUNTIME_EXHAUSTED_TOTAL.labels(stream)._value.get() == 1
    (error,) = running.errors
    assert isinstance(error, DeliveriesExhaustedError)
    assert (error.message_id, error.delivery_count, error.stream) == (message_id, 4, stream)
    assert len(pending()) == 1


@pytest.mark.spec("CM-001.14")
@pytest.mark.parametrize("acknowledges", [True, False])
async def test_on_exhausted_decides_about_a_message_delivered_too_often(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    raw: RawRedis,
    stream: str,
    pending: Pending,
    *,
    acknowledges: bool,
) -> None:
    (message_id,) = enqueue(1, order=7)
    strand(raw, stream, 1)
    raw.xclaim(stream, "processor", "dead", 0, [message_id], retrycount=3, idle=10_000, justid=True)
    seen, handler = collector()
    parked: list[Any] = []

    async def on_exhausted(message: RuntimeMessage, ctx: MessageContext) -> None:
        parked.append(message.data["order"])
        if acknowledges:
            await ctx.ack()
        else:
            raise RuntimeError("could not be parked")

    running = run(make_engine(handler, claim_idle_ms=60_000 if acknowledges else 60, max_deliveries=3,
                              on_exhausted=on_exhausted))  # fmt: skip
    running.engine._shards[0].fetcher._claims._next = {stream: 0.0}
    if acknowledges:
        raw.xclaim(stream, "processor", "dead", 0, [message_id], retrycount=3, idle=100_000, justid=True)
    await wait_until_async(lambda: parked)
    await running.stop()

    assert seen == []
    assert parked[0] == 7
    assert bool(pending()) is not acknowledges
    assert bool(running.errors) is not acknowledges


@pytest.mark.parametrize("name", ["another", "dead"])
async def test_a_deleted_pending_entry_is_reported_once_and_never_delivered(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, name: str
) -> None:
    enqueue(3)
    lost = strand(raw, stream, 3)
    raw.xdel(stream, lost[1])
    seen, handler = collector()

    # Under its own name it finds the entry twice: in its own pending list, and in the scan for stale entries.
    engine = make_engine(handler, claim_idle_ms=80, consumer_id=name)
    running = run(engine)
    await wait_until_async(lambda: len(seen) == 2 and not raw.xpending(stream, "processor")["pending"])
    await running.stop()

    assert {message_id for message_id, _ in seen} == {lost[0], lost[2]}
    (error,) = running.errors
    assert isinstance(error, QueueError)
    assert lost[1] in str(error)
    assert QUEUE_MESSAGES_DELETED_TOTAL.labels(stream)._value.get() == 1


async def test_a_suspect_begins_after_the_acknowledgements_before_it_are_confirmed(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    """It may kill the process: messages that finished before must not be charged for it."""
    ids = enqueue(10)
    raw.xgroup_create(stream, "processor", "0")
    raw.xreadgroup("processor", "dead", {stream: ">"})
    raw.xclaim(stream, "processor", "dead", 0, ids, idle=60_000, retrycount=11, justid=True)
    done: list[str] = []
    unconfirmed: list[set[str]] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        unconfirmed.append({row["message_id"].decode() for row in pending()} & set(done))
        done.append(message.id)

    running = run(make_engine(handler, concurrency=4))
    await wait_until_async(lambda: len(done) == 10)
    await running.stop()

    assert unconfirmed == [set()] * 10
