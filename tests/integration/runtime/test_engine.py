"""Seed 002 on a real server: the steps of the engine, their order, and what it leaves unchanged."""

import asyncio
import logging
import os
import re
import socket
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.cluster
from prometheus_client import REGISTRY
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Pending, Run
from tests.redis_clients import RawRedis

from conquiet.core.lifecycle import Status
from conquiet.errors import ConfigurationError, InfrastructureError, LifecycleError, MalformedMessageError
from conquiet.redis_transport.liveness import registry_key
from conquiet.runtime import (
    Consumer,
    EngineError,
    Failed,
    MessageContext,
    RuntimeMessage,
    Started,
    Succeeded,
    SyncMessageContext,
)
from conquiet.runtime.settings import RuntimeSettings
from conquiet.testing import wait_until_async


@pytest.mark.spec("CM-001.1", "CM-004.1", "CM-004.2", "CM-004.3", "CM-004.8")
async def test_each_message_reaches_the_handler_with_id_and_data(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    ids = enqueue(20)
    seen: list[tuple[str, int]] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        assert (ctx.id, ctx.stream, ctx.delivery_count) == (message.id, stream, 1)
        seen.append((message.id, message.data["n"]))

    running = run(make_engine(handler, concurrency=5, group="shop", consumer_id="worker-1"))
    await wait_until_async(lambda: len(seen) == 20)
    report = await running.stop()

    assert seen == list(zip(ids, range(20), strict=True))
    assert report.succeeded == 20
    assert raw.xpending(stream, "shop")["pending"] == 0
    assert raw.info("commandstats")["cmdstat_xreadgroup"]["calls"] > 0


@pytest.mark.spec("CM-001.8", "CM-004.4", "CM-001.10")
async def test_a_message_is_acknowledged_after_its_handler_and_never_before(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    """A second message goes through meanwhile: had the first been due, it would have been sent with it."""
    first, second = enqueue(2)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        if message.id == first:
            entered.set()
            await leave.wait()

    running = run(make_engine(handler, concurrency=2))
    await entered.wait()
    await wait_until_async(lambda: [row["message_id"].decode() for row in pending()] in ([first], []))
    still_pending = [row["message_id"].decode() for row in pending()]
    leave.set()
    await wait_until_async(lambda: not pending() and running.engine.health().in_flight == 0)
    report = await running.stop()

    assert still_pending == [first]
    assert report.succeeded == len({first, second})


@pytest.mark.spec("CM-001.8", "CM-001.10", "CM-001.13", "CM-004.6", "CM-002.6")
async def test_a_failed_message_stays_pending_until_it_is_stale(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, caplog: pytest.LogCaptureFixture
) -> None:
    (message_id,) = enqueue(1)
    failed: list[Failed] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        raise RuntimeError("no")

    engine = make_engine(handler)
    engine.on("failed", failed.append)
    running = run(engine)
    await wait_until_async(lambda: failed)
    report = await running.stop()

    assert isinstance(failed[0].error, RuntimeError)
    assert failed[0].message.id == message_id
    assert failed[0].duration_s >= 0
    assert report.failed == 1
    (reported,) = [record for record in caplog.records if record.message.startswith("handler failed")]
    assert reported.levelno == logging.WARNING  # without any set-up Python shows warnings, and nothing below
    assert [(row["message_id"], row["times_delivered"]) for row in pending()] == [(message_id.encode(), 1)]


@pytest.mark.spec("CM-001.10", "CM-001.2")
async def test_a_failed_message_is_delivered_again_once_it_is_stale(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    enqueue(1)
    counts: list[int] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        counts.append(message.delivery_count)
        if len(counts) < 3:
            raise RuntimeError("not yet")

    running = run(make_engine(handler, claim_idle_ms=100))
    await wait_until_async(lambda: len(counts) == 3)
    await running.stop()

    assert counts == [1, 2, 3]


@pytest.mark.spec("CM-001.9", "CM-006.1")
async def test_an_early_ack_is_done_when_it_returns_a_second_does_nothing(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, raw: RawRedis
) -> None:
    enqueue(1)
    left: list[int] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await ctx.ack()
        left.append(len(pending()))
        await ctx.ack()
        raise RuntimeError("after the ack nobody tries again")

    raw.config_resetstat()
    running = run(make_engine(handler))
    await wait_until_async(lambda: left)
    await running.stop()

    assert left == [0]
    assert raw.info("commandstats")["cmdstat_xack"]["calls"] == 1


@pytest.mark.spec("CM-001.11", "CM-001.12", "CM-001.13", "CM-004.5", "CM-004.6")
async def test_events_come_in_order_with_message_duration_and_error(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    enqueue(2)
    heard: list[Any] = []
    heard_async: list[Any] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await asyncio.sleep(0.01)
        if message.data["n"] == 1:
            raise KeyError("x")

    async def slow_listener(event: Any) -> None:
        await asyncio.sleep(0)
        heard_async.append(event)

    def broken_listener(event: Any) -> None:
        raise ValueError("a listener's own trouble")

    engine = make_engine(handler)
    for name in ("started", "succeeded", "failed"):
        engine.on(name, broken_listener)
        engine.on(name, heard.append)
        engine.on(name, slow_listener)
    running = run(engine)
    await wait_until_async(lambda: len(heard_async) == 4)
    await running.stop()

    assert [type(event) for event in heard] == [Started, Succeeded, Started, Failed]
    assert heard == heard_async
    assert heard[0].message is heard[1].message
    assert 0.01 <= heard[1].duration_s < 5
    assert isinstance(heard[3].error, KeyError)
    assert heard[3].duration_s >= 0.01


@pytest.mark.spec("CM-001.14")
async def test_a_malformed_entry_is_reported_once_and_stays_pending(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    seen: list[int] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append(message.data["n"])

    raw.xadd(stream, {"other": "secret-payload"})
    raw.xadd(stream, {"data": '{"n":3}', "other": "secret-payload"})
    enqueue(3)
    running = run(make_engine(handler, claim_idle_ms=80))
    await wait_until_async(lambda: len(seen) == 3 and pending() and pending()[0]["times_delivered"] > 2)
    await running.stop()

    assert [type(error) for error in running.errors] == [MalformedMessageError] * 2
    assert "secret" not in str(running.errors)
    assert sorted(seen) == [0, 1, 2]
    assert len(pending()) == 2


@pytest.mark.spec("CM-001.14")
@pytest.mark.parametrize("error", [LookupError, ValueError, InfrastructureError])
async def test_a_handler_that_raises_is_a_failed_event_and_an_error_event(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, error: type[Exception]
) -> None:
    raised = error("no")
    failed: list[Any] = []
    heard: list[Any] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        raise raised

    engine = make_engine(handler, claim_idle_ms=600_000)
    engine.on("failed", failed.append)
    engine.on("error", heard.append)
    (message_id,) = enqueue(1)
    running = run(engine)
    await wait_until_async(lambda: heard)
    await running.stop()

    assert [event.error for event in failed][:1] == [raised]
    assert (heard[0].error, heard[0].message.id) == (raised, message_id)


async def test_each_message_is_counted_once(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    """Of four messages one was claimed as stale, one fails, and one is acknowledged early."""
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    (stale,) = enqueue(1)
    raw.xreadgroup("processor", "dead", {stream: ">"})
    raw.xclaim(stream, "processor", "dead", 0, [stale], idle=3_600_000, justid=True)
    seen: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append(message.id)
        if len(seen) == 2:
            raise LookupError
        if len(seen) == 3:
            raw.xack(stream, "processor", message.id)

    engine = make_engine(handler, claim_idle_ms=600_000)
    engine._shards[0].fetcher._claims._next = {stream: 0.0}
    running = run(engine)
    await wait_until_async(lambda: seen == [stale])
    enqueue(3)
    await wait_until_async(lambda: len(seen) == 4)
    await running.stop()

    names = [
        "runtime_handled_total", "runtime_failed_total", "runtime_claimed_total", "runtime_handling_seconds_count",
        "runtime_wait_seconds_count", "queue_messages_ack_total", "queue_ack_noop_total",
    ]  # fmt: skip
    counted = [REGISTRY.get_sample_value(f"conquiet_{name}", {"stream": stream}) for name in names]
    assert counted == [3, 1, 1, 4, 3, 2, 1]
    waited_s = REGISTRY.get_sample_value("conquiet_runtime_wait_seconds_sum", {"stream": stream})
    assert waited_s is not None
    assert 0 <= waited_s < 600


def test_an_unknown_event_name_is_refused(redis_url: str) -> None:
    engine = Consumer(streams=["s"], redis=redis.Redis.from_url(redis_url), handler=print)

    with pytest.raises(ConfigurationError, match="started, succeeded, failed, error"):
        engine.on("finished", print)


@pytest.mark.spec("CM-001.6", "CM-001.7")
async def test_ten_thousand_messages_of_random_length_never_exceed_the_limit(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    for _ in range(10):
        enqueue(1_000)
    active = highest = done = 0
    disagreed = 0

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal active, highest, done, disagreed
        active += 1
        highest = max(highest, active)
        disagreed += engine.active_tasks != active
        await asyncio.sleep((message.data["n"] * 7919 % 13) / 10_000)
        active -= 1
        done += 1

    engine = make_engine(handler, concurrency=50)
    running = run(engine)
    most_in_hand = 0
    while done < 10_000:
        most_in_hand = max(most_in_hand, engine.health().in_flight - engine.health().unacknowledged)
        await asyncio.sleep(0.005)
    await running.stop()

    assert highest == 50
    assert disagreed == 0
    assert most_in_hand <= 50 + 128
    assert pending() == []


@pytest.mark.spec("CM-003.1", "CM-003.2", "CM-003.4", "CM-002.1", "CM-002.2", "CM-002.3", "CM-002.4", "CM-002.5",
                  "CM-002.6", "CM-002.7")  # fmt: skip
async def test_the_engine_sends_nothing_but_what_fetching_and_acknowledging_need(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    """No timer, no job key, no scan, no second stream: proved by what the server saw and what it holds."""
    enqueue(30)
    seen = 0

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal seen
        seen += 1
        if seen % 3 == 0:
            raise RuntimeError("left to others")

    raw.config_resetstat()
    engine = make_engine(handler, concurrency=4, claim_idle_ms=60_000)
    running = run(engine)
    await wait_until_async(lambda: seen == 30)
    consumers = raw.xinfo_consumers(stream, "processor")
    await running.stop()

    allowed = {
        "xgroup|create", "xreadgroup", "xack", "xautoclaim", "xinfo|groups", "xpending", "client|id", "client|unblock",
        "client|setinfo", "hello", "eval", "evalsha", "select",
        "get", "set", "del", "pttl", "sadd", "srem", "xgroup|delconsumer",  # reserve and release the consumer name
    }  # fmt: skip
    ours = {"xinfo|consumers", "config|resetstat", "info", "ping"}
    sent = {name.removeprefix("cmdstat_") for name in raw.info("commandstats")}
    assert sent - ours <= allowed
    # The name is registered for as long as an entry is pending under it: 10 handlers failed.
    assert set(raw.keys("*")) == {stream.encode(), registry_key(stream, "processor").encode()}
    assert raw.xlen(stream) == 30
    assert [consumer["name"].decode() for consumer in consumers] == [engine.consumer_id]
    assert re.fullmatch(rf"consumer-.*-{os.getpid()}(-\d+)?", engine.consumer_id)
    assert re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname()) in engine.consumer_id


@pytest.mark.spec("CM-003.1", "CM-003.3")
async def test_a_given_consumer_id_is_used_as_it_is_for_every_read(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    seen: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append(message.id)

    running = run(make_engine(handler, consumer_id="worker 1/ä"))
    for number in range(5):
        enqueue(1)
        await wait_until_async(lambda expected=number + 1: len(seen) == expected)  # type: ignore[misc]
    consumers = raw.xinfo_consumers(stream, "processor")
    await running.stop()

    assert [row["name"].decode() for row in consumers] == ["worker 1/ä"]


async def test_two_engines_of_one_process_have_different_names(make_engine: MakeEngine) -> None:
    assert make_engine(print).consumer_id != make_engine(print).consumer_id


@pytest.mark.spec("CM-001.4")
async def test_several_streams_are_served_by_one_engine(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, key_prefix: str
) -> None:
    names = [f"{key_prefix}s{number}" for number in range(7)]
    for name in names:
        enqueue(40, to=name)
    seen: dict[str, int] = dict.fromkeys(names, 0)

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen[message.stream] += 1

    engine = make_engine(handler, streams=names, concurrency=3)
    running = run(engine)
    await wait_until_async(lambda: sum(seen.values()) == 280)
    await running.stop()

    assert set(seen.values()) == {40}
    assert {name: counts.succeeded for name, counts in engine.health().streams.items()} == seen


@pytest.mark.spec("CM-001.5")
@pytest.mark.parametrize("concurrency", [1, 4, 64])
async def test_a_flooded_stream_does_not_starve_nine_others(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, key_prefix: str, concurrency: int
) -> None:
    names = [f"{key_prefix}s{number}" for number in range(10)]
    enqueue(3_000, to=names[0])
    for name in names[1:]:
        enqueue(5, to=name)
    order: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        order.append(message.stream)
        await asyncio.sleep(0)

    running = run(make_engine(handler, streams=names, concurrency=concurrency))
    await wait_until_async(lambda: len(order) == 3_045)
    await running.stop()

    last_of_the_others = max(at for at, name in enumerate(order) if name != names[0])
    assert last_of_the_others < 1_500


@pytest.mark.parametrize("concurrency", [1, 4, 8, 16, 50])
@pytest.mark.parametrize("prefetch", [0, 128])
async def test_lower_streams_get_a_quarter_while_a_higher_one_is_full(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, key_prefix: str, concurrency: int, prefetch: int
) -> None:
    low, high = f"{key_prefix}low", f"{key_prefix}high"
    enqueue(1_200, to=low)
    enqueue(1_200, to=high)
    order: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        order.append(message.stream)
        await asyncio.sleep(0)

    levels = {high: 5}
    running = run(
        make_engine(handler, streams=[low, high], priorities=levels, concurrency=concurrency, prefetch=prefetch)
    )
    await wait_until_async(lambda: len(order) == 2_400)
    await running.stop()

    # Between the first reads, when it is not known which stream is full, and the end of the higher one.
    while_full = order[400:1_400]
    assert 220 <= while_full.count(low) <= 280


async def test_a_plain_function_runs_in_a_thread_and_may_acknowledge_there(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    enqueue(20)
    threads: set[int] = set()
    left: list[int] = []

    def handler(message: RuntimeMessage, ctx: SyncMessageContext) -> None:
        time.sleep(0.01)
        threads.add(threading.get_ident())
        if message.data["n"] == 0:
            ctx.extend()
            ctx.ack()
            left.append(sum(row["message_id"].decode() == message.id for row in pending()))

    running = run(make_engine(handler, concurrency=4))
    await wait_until_async(lambda: running.engine.health().streams[running.engine._streams[0]].succeeded == 20)
    await running.stop()

    assert left == [0]
    assert threading.get_ident() not in threads
    assert 1 < len(threads) <= 4
    assert pending() == []


@pytest.mark.spec("CM-004.7")
async def test_start_ends_when_its_stop_event_is_set(make_engine: MakeEngine, enqueue: Enqueue) -> None:
    stop = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        stop.set()

    enqueue(1)
    engine = make_engine(handler)
    report = await asyncio.wait_for(engine.start(stop_event=stop), 60)

    assert report.succeeded == 1
    assert engine.status is Status.STOPPED


@pytest.mark.spec("CM-004.9", "CM-004.8", "CM-001.7")
async def test_after_stop_active_tasks_can_be_awaited_and_nothing_begins(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    enqueue(10)
    begun: list[str] = []
    finished: list[str] = []
    leave = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        begun.append(message.id)
        await leave.wait()
        finished.append(message.id)

    engine = make_engine(handler, concurrency=3)
    running = run(engine)
    await wait_until_async(lambda: engine.active_tasks == 3)
    engine.stop()
    waiting = asyncio.create_task(engine.wait_for_active_tasks())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    leave.set()
    await waiting

    assert finished == begun
    assert len(begun) == 3
    assert {row["message_id"].decode() for row in pending()}.isdisjoint(finished)
    assert (await running.task).succeeded == 3


async def test_an_idle_engine_stops_at_once(
    make_engine: MakeEngine, run: Run, raw: RawRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLIENT UNBLOCK ends the waiting read; without it a stop would take the rest of the slice."""
    monkeypatch.setattr(RuntimeSettings, "slice_ms", 4_000)
    running = run(make_engine(print))
    intake = running.engine._shards[0].fetcher
    await wait_until_async(lambda: intake.is_blocked)
    begun = intake.reads_begun
    raw.config_resetstat()

    await running.stop()

    assert raw.info("commandstats")["cmdstat_client|unblock"]["calls"] >= 1
    assert intake.reads_begun == begun


async def test_as_a_context_manager_it_runs_in_the_background_and_lives_once(
    make_engine: MakeEngine, enqueue: Enqueue
) -> None:
    seen: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append(message.id)

    ids = enqueue(5)
    engine = make_engine(handler)
    async with engine:
        assert engine.health().ready
        await wait_until_async(lambda: len(seen) == 5)

    assert seen == ids
    assert not engine.health().ready
    with pytest.raises(LifecycleError):
        await engine.start()


@pytest.mark.parametrize("options", [{"protocol": 3}, {"decode_responses": True}, {}])
@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
async def test_any_client_will_do_and_stays_as_it_was(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, redis_url: str, kind: type[Any], options: dict[str, Any]
) -> None:
    enqueue(3)
    seen: list[Any] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append(message.data)

    client = kind.from_url(redis_url, **options)
    running = run(make_engine(handler, redis=client))
    await wait_until_async(lambda: len(seen) == 3)
    await running.stop()

    pong = client.ping()
    assert await pong if asyncio.iscoroutine(pong) or hasattr(pong, "__await__") else pong
    closing = client.aclose() if isinstance(client, redis.asyncio.Redis) else client.close()
    if closing is not None:
        await closing


async def test_an_unreachable_server_is_an_error_at_the_start(make_engine: MakeEngine, closed_port: int) -> None:
    from conquiet.errors import QueueError

    client = redis.asyncio.Redis(port=closed_port)
    heard: list[EngineError] = []
    engine = make_engine(print, redis=client)
    engine.on("error", heard.append)

    with pytest.raises(QueueError, match="was not sent"):
        await engine.start()

    assert len(heard) == 1
    await client.aclose()
