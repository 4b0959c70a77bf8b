"""Entries of a lost reply are found on any slow connection, and are never confused with failed entries."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run
from tests.redis_clients import RawRedis

from conquiet.errors import QueueError
from conquiet.runtime import MessageContext, RuntimeMessage, claiming
from conquiet.runtime.stream_reader import StreamReader
from conquiet.testing import wait_until_async
from conquiet.testing.proxy import FaultProxy


async def idle(_: RuntimeMessage, __: MessageContext) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def reader(make_engine: MakeEngine, run: Run, stream: str, raw: RawRedis) -> AsyncIterator[StreamReader]:
    """The reader of an engine that was opened and fetches nothing, under the name ``me``."""
    engine = make_engine(idle, consumer_id="me")
    (shard,) = engine._shards
    await shard.open()
    yield shard._reader
    await shard.close()
    await engine._topology.close()


def lose(raw: RawRedis, stream: str, count: int) -> list[str]:
    """Let the server deliver to ``me`` what ``me`` will never see."""
    found = raw.xreadgroup("processor", "me", {stream: ">"}, count=count)
    return [entry_id.decode() for entry_id, _ in found[0][1]]


def release(reader: StreamReader, stream: str) -> None:
    """As after handlers that failed: pending for us, and not held."""
    for message in list(reader._table.of(stream).values()):
        reader._table.release(message)


async def test_a_slow_answer_makes_nothing_too_old(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(250)
    sent_at = time.monotonic()
    lost = lose(raw, stream, 250)
    call = reader._connection.call

    async def slow(packed: list[bytes]) -> list[Any]:
        await asyncio.sleep(0.05)
        return await call(packed)

    monkeypatch.setattr(reader._connection, "call", slow)
    found, more = [], True
    while more:
        page, more = await reader.pending.recover_undelivered(stream, 1_000, sent_at=sent_at, by_claim=False)
        found += page

    assert [message.id for message in found] == lost
    assert {message.delivery_count for message in found} == {1}


async def test_a_message_that_was_read_and_failed_does_not_count_as_lost(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue, make_engine: MakeEngine
) -> None:
    """Not even if the clocks do not decide it: it is before the last entry that a read returned."""
    sent_at = time.monotonic()
    enqueue(5)
    engine = make_engine(idle)
    take = engine._shards[0].fetcher._scheduler.plan(5)
    seen, _ = await reader.read(take, wait_ms=0, acks=None)
    release(reader, stream)
    enqueue(3)
    lost = lose(raw, stream, 3)

    found, _ = await reader.pending.recover_undelivered(stream, 100, sent_at=sent_at, by_claim=False)

    assert len(seen) == 5
    assert [message.id for message in found] == lost


async def test_a_claim_whose_reply_is_lost_is_found_wherever_its_entries_stand(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue, make_engine: MakeEngine
) -> None:
    ids = enqueue(5)
    raw.xreadgroup("processor", "somebody", {stream: ">"}, count=2)
    engine = make_engine(idle)
    await reader.read(engine._shards[0].fetcher._scheduler.plan(5), wait_ms=0, acks=None)
    sent_at = time.monotonic()
    raw.xautoclaim(stream, "processor", "me", 0, "0-0", count=2)

    found, _ = await reader.pending.recover_undelivered(stream, 100, sent_at=sent_at, by_claim=True)

    assert [(message.id, message.delivery_count) for message in found] == [(ids[0], 2), (ids[1], 2)]


@pytest.mark.parametrize("way", ["read_own", "claim", "claim without XAUTOCLAIM", "recover_undelivered"])
async def test_messages_returned_by_a_recovery_are_held_afterwards(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A message that is not in the table is not extended: it would become stale during its handler and run twice."""
    ids = enqueue(2)
    sent_at = time.monotonic()
    lose(raw, stream, 2)
    if way.startswith("claim"):
        if way != "claim":
            monkeypatch.setattr(claiming, "TAKE_OVER", claiming.TAKE_OVER.replace("XAUTOCLAIM", "XDISABLED"))
        raw.xclaim(stream, "processor", "dead", 0, ids, idle=3_600_000, justid=True)
        found, _ = await reader.pending.claim(stream, "0-0", 5)
    elif way == "read_own":
        found, _ = await reader.pending.read_own(stream, "0-0", 5)
    else:
        found, _ = await reader.pending.recover_undelivered(stream, 5, sent_at=sent_at, by_claim=False)

    assert [message.id for message in found] == ids
    assert reader._table.snapshot() == found


@pytest.mark.parametrize(("own", "command"), [(True, "XCLAIM"), (False, "XAUTOCLAIM")])
async def test_a_refused_look_says_which_command_was_refused(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue, command: str, *, own: bool
) -> None:
    ids = enqueue(2)
    lose(raw, stream, 2)
    owner = reader._consumer_id if own else "dead"
    raw.xclaim(stream, "processor", owner, 0, ids, idle=3_600_000, justid=True)
    raw.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(QueueError, match=rf"{command} .* refused .*NOREPLICAS"):
            await (reader.pending.read_own if own else reader.pending.claim)(stream, "0-0", 5)
    finally:
        raw.config_set("min-replicas-to-write", 0)

    assert reader._table.snapshot() == []


async def test_a_forbidden_claim_is_not_taken_for_a_disabled_command(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue
) -> None:
    ids = enqueue(1)
    lose(raw, stream, 1)
    raw.xclaim(stream, "processor", "dead", 0, ids, idle=3_600_000, justid=True)
    raw.execute_command("ACL", "SETUSER", "default", "-xautoclaim")
    try:
        with pytest.raises(QueueError, match=r"XAUTOCLAIM .* refused"):
            await reader.pending.claim(stream, "0-0", 5)
    finally:
        raw.execute_command("ACL", "SETUSER", "default", "+xautoclaim")


async def test_reading_our_own_entries_charges_no_message_in_flight(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue
) -> None:
    """They were recovered by a reconnect during the start, and run already."""
    enqueue(2)
    sent_at = time.monotonic()
    lose(raw, stream, 2)
    held, _ = await reader.pending.recover_undelivered(stream, 5, sent_at=sent_at, by_claim=False)

    again, _ = await reader.pending.read_own(stream, "0-0", 5)

    rows = raw.xpending_range(stream, "processor", "-", "+", 5)
    assert (len(held), again) == (2, [])
    assert [row["times_delivered"] for row in rows] == [1, 1]


async def test_a_failed_message_does_not_rerun_after_a_lost_claim_reply(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan for stale entries loses its connection: entries of an earlier read are older than the scan.

    Older by more than a reply takes: entries that were delivered within that time before the scan cannot be
    distinguished from it.
    """
    runs: list[str] = []
    failed_at: list[float] = []

    async def failing(message: RuntimeMessage, _: MessageContext) -> None:
        runs.append(message.id)
        failed_at.append(time.monotonic())
        raise LookupError

    engine = make_engine(failing, claim_idle_ms=600_000)
    (shard,) = engine._shards
    claim, lost = shard._reader.pending.claim, asyncio.Event()

    async def broken_once(*arguments: Any) -> Any:
        if is_old and not lost.is_set():
            lost.set()
            await shard.connection.close()
        return await claim(*arguments)

    is_old = False
    monkeypatch.setattr(shard._reader.pending, "claim", broken_once)
    shard.fetcher._claims._next = {stream: 0.0}
    running = run(engine)
    enqueue(1)
    await wait_until_async(lambda: failed_at and time.monotonic() > failed_at[0] + 2)
    is_old = True
    shard.fetcher._claims._next = {stream: 0.0}
    await lost.wait()
    enqueue(1)
    await wait_until_async(lambda: len(runs) > 1)
    await running.stop()

    assert len(set(runs)) == 2
    assert len(runs) == 2


async def test_entries_of_a_claim_whose_reply_is_lost_are_had_at_once(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    stream: str,
    raw: RawRedis,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
) -> None:
    handled: list[str] = []

    async def note(message: RuntimeMessage, _: MessageContext) -> None:
        handled.append(message.id)

    proxy = fault_proxy(redis_url)
    client = redis.asyncio.Redis.from_url(proxy.url_for(redis_url))
    engine = make_engine(note, redis=client, claim_idle_ms=600_000)
    stealing = engine._shards[0].fetcher._claims
    stealing._next = {stream: 3_600.0}
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    ids = enqueue(2)
    raw.xreadgroup("processor", "somebody", {stream: ">"})
    raw.xclaim(stream, "processor", "somebody", 0, ids, idle=3_600_000, justid=True)
    running = run(engine)
    newer = enqueue(1)
    await wait_until_async(lambda: handled == newer)

    proxy.drop_next_reply(b"XAUTOCLAIM")
    stealing._next = {stream: 0.0}
    await wait_until_async(lambda: set(handled) == {*ids, *newer})
    await running.stop()
    await client.aclose()

    assert running.errors
    assert len(handled) == 3
    counted = engine.health().streams[stream]
    assert (counted.read, counted.claimed) == (1, 2)
