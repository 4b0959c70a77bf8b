"""Leases of many messages, recovery after a second loss, and the last delivery that the cap allows."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Pending, Run
from tests.redis_clients import RawRedis

from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.runtime.claiming import TAKE_OVER, suspect_from, take_over, taken_over
from conquiet.runtime.message import Ownership
from conquiet.runtime.stream_reader import StreamReader
from conquiet.testing import wait_until_async
from conquiet.testing.proxy import FaultProxy

HOUR_MS = 3_600_000


async def idle(_: RuntimeMessage, __: MessageContext) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def reader(make_engine: MakeEngine) -> AsyncIterator[StreamReader]:
    """The reader of an engine that was opened and fetches nothing, under the name ``me``."""
    engine = make_engine(idle, consumer_id="me")
    (shard,) = engine._shards
    await shard.open()
    yield shard._reader
    await shard.close()
    await engine._topology.close()


async def test_a_message_runs_as_often_as_max_deliveries_says(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    """Only what was delivered *more often* than the cap is not run."""
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    (message_id,) = enqueue(1)
    raw.xreadgroup("processor", "dead", {stream: ">"})
    raw.xclaim(stream, "processor", "dead", 0, [message_id], retrycount=2, idle=HOUR_MS, justid=True)
    runs: list[int] = []

    async def note(message: RuntimeMessage, _: MessageContext) -> None:
        runs.append(message.delivery_count)

    running = run(make_engine(note, max_deliveries=3))
    await wait_until_async(lambda: runs or running.errors)
    await running.stop()

    assert runs == [3]
    assert running.errors == []
    assert pending() == []


@pytest.mark.parametrize("cap", [2, 3, 20])
def test_the_last_allowed_delivery_is_not_counted_before_it_runs(
    enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending, cap: int
) -> None:
    """It waits for its turn alone. Another one before it may kill the process, and its own chance would be gone."""
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    (message_id,) = enqueue(1)
    raw.xreadgroup("processor", "dead", {stream: ">"})
    raw.xclaim(stream, "processor", "dead", 0, [message_id], retrycount=cap - 1, idle=HOUR_MS, justid=True)

    for consumer in ("killed", "next"):
        limits = (suspect_from(cap), 1_000, "data", cap, 0)
        (taken,) = taken_over(raw.eval(TAKE_OVER, 1, stream, "processor", consumer, 0, "0-0", 10, *limits)).entries
        assert (taken.deliveries, taken.charged) == (cap, False)

    assert [row["times_delivered"] for row in pending()] == [cap - 1]


async def test_claiming_a_message_in_flight_again_counts_no_delivery(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    """The heartbeat was late. If the message kills its process now, there is no time to undo a count."""
    engine = make_engine(idle, consumer_id="me", grace_s=0.0, claim_idle_ms=HOUR_MS)
    enqueue(1)
    running = run(engine)
    await wait_until_async(lambda: len(engine._table) == 1)
    (message,) = engine._table.snapshot()
    (shard,) = engine._shards
    for lost, idle_ms in ((False, 0), (True, HOUR_MS)):
        raw.xclaim(stream, "processor", "me", 0, [message.id], idle=2 * HOUR_MS, justid=True)
        if lost:
            message.ownership = Ownership.LOST
        packed = take_over(
            stream, ("processor", "me"), engine._settings, idle_ms=HOUR_MS, cursor="0-0", count=10, known=[],
            in_flight=[message],
        )  # fmt: skip
        (reply,) = await shard._ack_connection.call([packed])

        assert taken_over(reply).entries == []
        (row,) = pending()
        assert row["times_delivered"] == 1
        assert idle_ms <= row["time_since_delivered"] < idle_ms + HOUR_MS / 2  # a lost lease stays claimable
    await running.stop()


async def test_a_claim_names_the_messages_in_flight(
    reader: StreamReader,
    enqueue: Enqueue,
    raw: RawRedis,
    stream: str,
    pending: Pending,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueue(1)
    raw.xreadgroup("processor", "me", {stream: ">"})
    ((message,), _) = await reader.pending.read_own(stream, "0-0", 10)
    raw.xclaim(stream, "processor", "me", 0, [message.id], idle=HOUR_MS, justid=True)
    (before,) = pending()
    commands: list[bytes] = []
    call = reader.pending._connection.call

    async def record(sent: list[bytes]) -> list[Any]:
        commands.extend(sent)
        return await call(sent)

    monkeypatch.setattr(reader.pending._connection, "call", record)

    assert (await reader.pending.claim(stream, "0-0", 10))[0] == []

    assert len(commands) == 1  # no second command that would correct a count
    assert pending()[0]["times_delivered"] == before["times_delivered"]


async def test_one_beat_extends_every_message_held_however_many(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    count = 600
    engine = make_engine(idle, consumer_id="me", concurrency=count, grace_s=0.0, claim_idle_ms=10 * HOUR_MS)
    ids = enqueue(count)
    running = run(engine)
    await wait_until_async(lambda: len(engine._table) == count)
    raw.xclaim(stream, "processor", "me", 0, ids, idle=HOUR_MS, justid=True)
    for message in engine._table.snapshot():
        message.leased_at -= 5 * 3_600

    await asyncio.to_thread(engine._heartbeat.beat, time.monotonic())
    idle_ms = [row["time_since_delivered"] for row in pending()]
    await running.stop()

    assert len(idle_ms) == count
    assert max(idle_ms) < HOUR_MS


async def test_after_another_loss_what_stands_before_the_last_recovery_is_found(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue
) -> None:
    """A lost claim brings older entries than a lost read did; the look begins again at the first pending entry."""
    older = enqueue(2)
    raw.xreadgroup("processor", "dead", {stream: ">"})
    (newer,) = enqueue(1)
    sent_at = time.monotonic()
    raw.xreadgroup("processor", "me", {stream: ">"})
    first, _ = await reader.pending.recover_undelivered(stream, 10, sent_at=sent_at, by_claim=False)

    reader.pending.begin_recovery()
    sent_at = time.monotonic()
    raw.xautoclaim(stream, "processor", "me", 0, "0-0", count=2)
    second, _ = await reader.pending.recover_undelivered(stream, 10, sent_at=sent_at, by_claim=True)

    assert [message.id for message in first] == [newer]
    assert [message.id for message in second] == older


async def test_a_released_message_of_a_lost_claim_is_in_its_first_delivery(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue, pending: Pending
) -> None:
    """A release takes the delivery back, so the server counts none. A batch's size follows from the count."""
    (message_id,) = enqueue(1)
    raw.xreadgroup("processor", "stopped", {stream: ">"})
    sent_at = time.monotonic()
    raw.xclaim(stream, "processor", "me", 0, [message_id], retrycount=0, justid=True)

    (found,), _ = await reader.pending.recover_undelivered(stream, 10, sent_at=sent_at, by_claim=True)

    assert found.delivery_count == 1
    assert [row["times_delivered"] for row in pending()] == [1]


async def test_messages_of_a_lost_reply_are_not_charged_on_the_server(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue, pending: Pending
) -> None:
    enqueue(3)
    sent_at = time.monotonic()
    raw.xreadgroup("processor", "me", {stream: ">"})

    found, _ = await reader.pending.recover_undelivered(stream, 10, sent_at=sent_at, by_claim=False)

    assert [message.delivery_count for message in found] == [1, 1, 1]
    assert [row["times_delivered"] for row in pending()] == [1, 1, 1]


async def test_a_lost_reply_is_found_behind_pages_of_entries_that_failed_before(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue
) -> None:
    """Pages without anything lost are passed: a look that began with the first one each time would never end."""
    failed = enqueue(250)
    raw.xreadgroup("processor", "me", {stream: ">"})
    raw.xclaim(stream, "processor", "me", 0, failed, idle=HOUR_MS, justid=True)
    lost = enqueue(1)
    sent_at = time.monotonic()
    raw.xreadgroup("processor", "me", {stream: ">"})

    found: list[RuntimeMessage] = []
    for _ in range(3):
        page, more = await reader.pending.recover_undelivered(stream, 10, sent_at=sent_at, by_claim=False)
        found += page

    assert [message.id for message in found] == lost
    assert not more


async def test_an_entry_that_another_takes_right_after_our_claim_is_not_delivered(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery count is queried under our own consumer name: an entry of another consumer has none there."""
    ids = enqueue(2)
    raw.xreadgroup("processor", "dead", {stream: ">"})
    raw.xclaim(stream, "processor", "dead", 0, ids, idle=HOUR_MS, justid=True)
    call = reader._connection.call

    async def with_a_thief(packed: list[bytes]) -> list[Any]:
        if b"XPENDING" in packed[0]:
            raw.xclaim(stream, "processor", "thief", 0, ids[:1])
        return await call(packed)

    monkeypatch.setattr(reader._connection, "call", with_a_thief)
    claimed, _ = await reader.pending.claim(stream, "0-0", 5)

    assert [(message.id, message.delivery_count) for message in claimed] == [(ids[1], 2)]


async def test_a_recovered_message_that_fails_is_not_taken_for_lost_again(
    reader: StreamReader, stream: str, raw: RawRedis, enqueue: Enqueue
) -> None:
    ids = enqueue(2)
    sent_at = time.monotonic()
    raw.xreadgroup("processor", "me", {stream: ">"})
    first, more = await reader.pending.recover_undelivered(stream, 1, sent_at=sent_at, by_claim=False)
    reader._table.release(first[0])  # as after a handler that failed

    second, _ = await reader.pending.recover_undelivered(stream, 1, sent_at=sent_at, by_claim=False)

    assert more
    assert [message.id for message in first + second] == ids


async def test_a_lost_read_of_many_is_recovered_whole_on_every_stream(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    raw: RawRedis,
    stream: str,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
) -> None:
    other = f"{stream}-other"
    # Two streams may assign the same id.
    sent = [(name, entry_id) for name in (stream, other) for entry_id in enqueue(150, to=name)]
    handled: list[tuple[str, str]] = []

    async def note(message: RuntimeMessage, _: MessageContext) -> None:
        handled.append((message.stream, message.id))

    proxy = fault_proxy(redis_url)
    client = redis.asyncio.Redis.from_url(proxy.url_for(redis_url))
    engine = make_engine(note, redis=client, streams=[stream, other], concurrency=300, claim_idle_ms=600_000)
    proxy.drop_next_reply(b"\r\n>\r\n")  # of the first read for new entries
    running = run(engine)
    await wait_until_async(lambda: len(handled) >= len(sent))
    await running.stop()
    await client.aclose()

    assert running.errors
    assert sorted(handled) == sorted(sent)


@pytest.mark.parametrize("is_overlong", [False, True])
async def test_a_claim_of_a_running_message_charges_no_delivery(
    reader: StreamReader,
    make_engine: MakeEngine,
    stream: str,
    raw: RawRedis,
    enqueue: Enqueue,
    pending: Pending,
    *,
    is_overlong: bool,
) -> None:
    """A handler past ``max_lease_s`` has lost its lease: its engine's own claim must not hide the entry again."""
    (message_id,) = enqueue(1)
    shard = make_engine(idle)._shards[0]
    take = shard.fetcher._scheduler.plan(1)
    (message,), _ = await reader.read(take, wait_ms=0)
    if is_overlong:
        message.lose()
    raw.xclaim(stream, "processor", "me", 0, [message_id], idle=HOUR_MS, justid=True)

    claimed, _ = await reader.pending.claim(stream, "0-0", 5)
    (row,) = pending()

    assert claimed == []
    assert row["times_delivered"] == 1
    assert (row["time_since_delivered"] >= reader.pending._settings.claim_idle_ms) is is_overlong


async def test_a_message_that_was_claimed_while_it_waited_is_not_begun(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    """No beat has noticed it yet: the slot queries the server before it begins."""
    begun: list[str] = []
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(message: RuntimeMessage, _: MessageContext) -> None:
        begun.append(message.id)
        entered.set()
        await leave.wait()

    engine = make_engine(handler, concurrency=1, claim_idle_ms=600_000)
    engine._pace.average_s = 0.0  # so quick that more than one is fetched
    ids = enqueue(2)
    running = run(engine)
    await entered.wait()
    await wait_until_async(lambda: len(engine._table) == 2)
    engine._table.of(stream)[ids[1]].leased_at -= 601
    raw.xclaim(stream, "processor", "thief", 0, [ids[1]])
    leave.set()
    await wait_until_async(lambda: len(engine._table) == 0)
    await running.stop()

    assert begun == [ids[0]]
    assert [(row["consumer"], row["times_delivered"]) for row in pending()] == [(b"thief", 2)]
