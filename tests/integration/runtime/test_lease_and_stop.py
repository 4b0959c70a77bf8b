"""A live handler keeps its message, a lost lease is reported, and a stop counts no attempt."""

import asyncio
import contextvars
import gc
import random
import threading
import time
from typing import Any

import pytest
from tests.integration.runtime.conftest import BeatQuickly, Enqueue, MakeEngine, Pending, Run, SeenToFall
from tests.redis_clients import RawRedis

from conquiet.errors import GroupMissingError, LeaseLostError
from conquiet.runtime import EngineError, Failed, MessageContext, RuntimeMessage
from conquiet.testing import wait_until, wait_until_async


async def test_a_handler_that_blocks_the_event_loop_keeps_its_message(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    stream: str,
    pending: Pending,
    beat_quickly: BeatQuickly,
    seen_to_fall: SeenToFall,
) -> None:
    """Its lease is extended all the time, so that no engine finds it stale."""
    enqueue(1)
    counts: list[int] = []

    async def blocking(message: RuntimeMessage, ctx: MessageContext) -> None:
        # Blocks the loop, which is the point of the test.
        wait_until(seen_to_fall(lambda: pending()[0]["time_since_delivered"]), message="extended three times")
        counts.append(pending()[0]["times_delivered"])

    engine = beat_quickly(make_engine(blocking, claim_idle_ms=600_000))
    running = run(engine)
    await wait_until_async(lambda: engine.health().streams[stream].succeeded == 1)
    await running.stop()

    assert counts == [1]
    assert pending() == []


@pytest.mark.spec("CM-001.14")
async def test_a_lost_lease_is_reported_and_its_message_left_alone(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    raw: RawRedis,
    stream: str,
    pending: Pending,
    beat_quickly: BeatQuickly,
) -> None:
    (message_id,) = enqueue(1)
    entered, leave = asyncio.Event(), asyncio.Event()
    reported: list[Any] = []
    failed: list[Failed] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        entered.set()
        ctx.check_lease()
        await leave.wait()
        reported.append((ctx.lease_lost, ctx.lease_remaining_s))
        with pytest.raises(LeaseLostError):
            ctx.check_lease()
        with pytest.raises(LeaseLostError):
            await ctx.extend()

    engine = beat_quickly(make_engine(handler, claim_idle_ms=600_000))
    engine.on("failed", failed.append)
    running = run(engine)
    await entered.wait()
    raw.xclaim(stream, "processor", "thief", 0, [message_id])
    await wait_until_async(lambda: running.errors)
    owners = [row["consumer"] for row in pending()]
    leave.set()
    await wait_until_async(lambda: failed)
    await running.stop()

    assert reported == [(True, 0.0)]
    assert isinstance(running.errors[0], LeaseLostError)
    assert isinstance(failed[0].error, LeaseLostError)
    assert owners == [b"thief"]
    assert [row["consumer"] for row in pending()] == [b"thief"]


async def test_a_lease_is_extended_without_charging_a_delivery(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    pending: Pending,
    beat_quickly: BeatQuickly,
    seen_to_fall: SeenToFall,
) -> None:
    enqueue(1)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        entered.set()
        await leave.wait()

    running = run(beat_quickly(make_engine(handler, claim_idle_ms=600_000)))
    await entered.wait()
    await wait_until_async(seen_to_fall(lambda: pending()[0]["time_since_delivered"]), message="extended three times")
    count = pending()[0]["times_delivered"]
    leave.set()
    await running.stop()

    assert count == 1


async def test_a_stream_that_refuses_the_heartbeat_costs_no_other_lease(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    """The group of one of two streams is gone: its extension is refused, the other's is granted in the same write."""
    other = f"{stream}-other"
    entered: dict[str, RuntimeMessage] = {}
    leave = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        entered[message.stream] = message
        await leave.wait()

    engine = make_engine(handler, streams=[stream, other], concurrency=2, claim_idle_ms=600_000)
    heartbeat = engine._heartbeat
    running = run(engine)
    enqueue(1)
    enqueue(1, to=other)
    await wait_until_async(lambda: len(entered) == 2)
    raw.xgroup_destroy(stream, "processor")  # both slots are taken: no read comes that would find out
    for message in entered.values():
        message.leased_at -= 300
    before = entered[other].leased_at

    with pytest.raises(GroupMissingError, match=f"XCLAIM on stream '{stream}'"):
        await asyncio.to_thread(heartbeat.beat, time.monotonic())
    assert entered[other].leased_at > before
    assert [message.lease_lost for message in entered.values()] == [False, False]

    assert engine.health().lease_alive
    heartbeat._last_success -= 600
    assert not engine.health().lease_alive
    assert heartbeat._thread.daemon  # a process that ends without a stop does not wait for it
    raw.xgroup_create(stream, "processor", "$")
    leave.set()
    await running.stop()
    heartbeat._last_success = time.monotonic()
    assert not engine.health().lease_alive


@pytest.mark.spec("CM-001.14")
async def test_a_failed_heartbeat_is_an_error_event(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, beat_quickly: BeatQuickly
) -> None:
    leave = asyncio.Event()
    entered = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        entered.set()
        await leave.wait()

    running = run(beat_quickly(make_engine(handler, concurrency=1, claim_idle_ms=600_000)))
    enqueue(1)
    await entered.wait()
    raw.xgroup_destroy(stream, "processor")
    await wait_until_async(lambda: running.errors)
    raw.xgroup_create(stream, "processor", "$")
    leave.set()
    await running.stop()

    assert isinstance(running.errors[0], GroupMissingError)


async def test_a_message_that_waited_too_long_runs_if_still_ours(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    """No other engine has claimed it, which only the server knows."""
    seen: list[int] = []
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append(message.data["n"])
        entered.set()
        await leave.wait()

    engine = make_engine(handler, concurrency=1, claim_idle_ms=600_000)
    engine._pace.average_s = 0.0  # so quick that more than one is fetched
    ids = enqueue(2)
    running = run(engine)
    await entered.wait()
    await wait_until_async(lambda: len(engine._table) == 2)
    engine._table.of(stream)[ids[1]].leased_at -= 601
    leave.set()
    await wait_until_async(lambda: seen == [0, 1] and not pending())
    report = await running.stop()

    assert (report.succeeded, running.errors) == (2, [])


async def test_a_lease_ends_after_max_lease_s_and_is_reported(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    enqueue(1)
    leave = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await leave.wait()

    running = run(make_engine(handler, claim_idle_ms=300, max_lease_s=0.2, concurrency=1))
    await wait_until_async(lambda: any(isinstance(error, LeaseLostError) for error in running.errors))
    assert pending()[0]["time_since_delivered"] >= 300
    leave.set()
    await running.stop()

    assert len(pending()) == 1


async def test_unstarted_messages_are_released_uncharged(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, stream: str
) -> None:
    ids = enqueue(200)
    entered = asyncio.Event()
    leave = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        if message.data["n"] == 150:
            entered.set()
            await leave.wait()

    engine = make_engine(handler, concurrency=1, claim_idle_ms=600_000)
    running = run(engine)
    await entered.wait()
    await wait_until_async(lambda: engine.health().in_flight > 1)
    await wait_until_async(lambda: pending()[0]["message_id"].decode() == ids[150])  # the rest is acknowledged
    engine.stop()
    await wait_until_async(lambda: all(row["times_delivered"] == 0 for row in pending()[1:]))
    rows = {row["message_id"].decode(): row for row in pending()}
    leave.set()
    report = await running.task

    assert report.succeeded == 151
    assert rows.pop(ids[150])["times_delivered"] == 1
    assert len(rows) == report.released > 0
    assert {row["times_delivered"] for row in rows.values()} == {0}
    assert min(row["time_since_delivered"] for row in rows.values()) > 600_000

    counts: list[int] = []

    async def next_handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        counts.append(message.delivery_count)

    following = run(make_engine(next_handler, claim_idle_ms=600_000))
    following.engine._shards[0].fetcher._claims._next = {stream: 0.0}
    await wait_until_async(lambda: len(counts) == 49)
    await following.stop()
    assert set(counts) == {1}


@pytest.mark.spec("CM-004.8", "CM-001.10")
async def test_stopping_at_random_moments_strands_nothing_and_charges_nothing(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    """A small version of 1,000 stops; tests/invariants has the large one."""
    enqueue(1_500)
    raw.xgroup_create(stream, "processor", "0")  # the first engine may be stopped before it has come to that
    counts: dict[str, list[int]] = {}
    rng = random.Random(7)

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        counts.setdefault(message.id, []).append(message.delivery_count)
        if message.data["n"] % 3:
            await asyncio.sleep(0.002)

    for _ in range(60):
        if len(counts) == 1_500:
            break
        engine = make_engine(handler, concurrency=4, claim_idle_ms=60_000, consumer_id=f"c{rng.random()}")
        running = run(engine)
        await asyncio.sleep(rng.random() * 0.06)
        report = await running.stop()
        assert (report.unreleased, report.abandoned, report.unacknowledged) == (0, (), ())
        assert running.errors == []
        assert all(row["times_delivered"] == 0 for row in pending())
    last = run(make_engine(handler, concurrency=50, claim_idle_ms=60_000))
    last.engine._shards[0].fetcher._claims._next = {stream: 0.0}
    await wait_until_async(lambda: len(counts) == 1_500)
    await last.stop()

    assert {tuple(deliveries) for deliveries in counts.values()} == {(1,)}
    assert pending() == []


async def test_after_the_grace_period_a_handler_is_broken_off_and_reported(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, stream: str, pending: Pending
) -> None:
    (message_id,) = enqueue(1)
    entered = asyncio.Event()
    failed: list[Failed] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        entered.set()
        await asyncio.sleep(60)

    engine = make_engine(handler, grace_s=0.1)
    engine.on("failed", failed.append)
    running = run(engine)
    await entered.wait()
    report = await running.stop()

    assert report.abandoned == ((stream, message_id),)
    assert isinstance(failed[0].error, asyncio.CancelledError)
    assert len(pending()) == 1


async def test_a_second_stop_forces(make_engine: MakeEngine, run: Run, enqueue: Enqueue) -> None:
    enqueue(1)
    entered = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        entered.set()
        await asyncio.sleep(600)

    engine = make_engine(handler, grace_s=600.0)
    running = run(engine)
    await entered.wait()
    engine.stop()
    engine.stop()
    report = await asyncio.wait_for(running.task, 60)

    assert len(report.abandoned) == 1


async def test_cancelling_start_is_a_stop_in_order(
    make_engine: MakeEngine, enqueue: Enqueue, pending: Pending, stream: str
) -> None:
    enqueue(100)
    entered, leave = asyncio.Event(), asyncio.Event()
    finished: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        entered.set()
        await leave.wait()
        finished.append(message.id)

    engine = make_engine(handler, concurrency=2)
    task = asyncio.create_task(engine.start())
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    leave.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(finished) == 2
    assert all(row["times_delivered"] == 0 for row in pending())
    assert engine.report is not None


async def test_no_task_and_no_thread_is_left_over(make_engine: MakeEngine, run: Run, enqueue: Enqueue) -> None:
    enqueue(100)
    before_threads = set(threading.enumerate())
    before_tasks = asyncio.all_tasks()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await asyncio.sleep(0.001)

    engine = make_engine(handler, concurrency=10)
    running = run(engine)
    await wait_until_async(lambda: engine.health().streams[engine._streams[0]].succeeded == 100)
    await running.stop()
    gc.collect()

    # The default executor of the loop keeps its threads; they are asyncio's, not ours.
    left = {thread for thread in set(threading.enumerate()) - before_threads if thread.name.startswith("conquiet")}
    assert left == set()
    assert asyncio.all_tasks() - before_tasks == set()


async def test_context_variables_of_one_message_do_not_reach_the_next(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    """Slots are long-lived tasks, so this does not come for free."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")
    found: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        found.append(variable.get())
        variable.set(message.id)
        await asyncio.sleep(0)
        assert variable.get() == message.id

    enqueue(10)
    running = run(make_engine(handler))
    await wait_until_async(lambda: len(found) == 10)
    report = await running.stop()

    assert set(found) == {"clean"}
    assert report.failed == 0


async def test_stop_may_be_called_from_another_thread(make_engine: MakeEngine, run: Run) -> None:
    running = run(make_engine(print))
    await wait_until_async(lambda: running.engine.health().ready)

    await asyncio.to_thread(running.engine.stop)

    await asyncio.wait_for(running.task, 60)


async def test_a_callback_that_is_async_may_be_slow_without_losing_events(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    enqueue(1_500)
    heard = 0

    async def listener(event: EngineError) -> None:
        nonlocal heard
        heard += 1
        await asyncio.sleep(0)

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        pass

    engine = make_engine(handler, concurrency=10)
    engine.on("succeeded", listener)
    running = run(engine)
    await wait_until_async(lambda: heard == 1_500)
    await running.stop()


async def test_a_message_claimed_while_it_waited_for_a_worker_is_not_started(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    raw: RawRedis,
    stream: str,
    pending: Pending,
    beat_quickly: BeatQuickly,
) -> None:
    """Prefetched, then another engine took it: the heartbeat finds out, and the slot passes it by."""
    ids = enqueue(40)
    entered, leave = asyncio.Event(), asyncio.Event()
    begun: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        begun.append(message.id)
        if message.data["n"] == 20:
            entered.set()
            await leave.wait()

    engine = beat_quickly(make_engine(handler, claim_idle_ms=600_000))
    running = run(engine)
    await entered.wait()
    await wait_until_async(lambda: engine.health().in_flight > 5)
    raw.xclaim(stream, "processor", "thief", 0, ids[-3:])
    await wait_until_async(lambda: len(running.errors) == 3)
    leave.set()
    await wait_until_async(lambda: len(begun) == 37 and engine.health().in_flight == 0)
    await running.stop()

    assert set(begun).isdisjoint(ids[-3:])
    assert [type(error) for error in running.errors] == [LeaseLostError] * 3
    assert [row["consumer"] for row in pending()] == [b"thief"] * 3
