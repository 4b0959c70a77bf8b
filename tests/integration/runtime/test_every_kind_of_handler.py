"""Rules about handlers, checked for every kind: awaited, in a thread, and both with batches."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Pending, Run
from tests.redis_clients import RawRedis

from conquiet.redis_transport.liveness import registry_key
from conquiet.runtime.engine_events import Failed, Started, Succeeded
from conquiet.testing import Direction, wait_until_async
from conquiet.testing.proxy import FaultProxy

KINDS = ("async", "plain", "async batch", "plain batch")


def handler_of(kind: str, work: Callable[[list[Any]], None]) -> tuple[Any, dict[str, Any]]:
    """Return a handler that calls ``work`` with its messages, and the options that it needs."""
    options = {"claim_idle_ms": 600_000} | ({"batch": 5} if "batch" in kind else {})

    async def awaited(messages: Any, contexts: Any) -> None:
        work(messages if isinstance(messages, list) else [messages])

    def plain(messages: Any, contexts: Any) -> None:
        work(messages if isinstance(messages, list) else [messages])

    return (awaited if kind.startswith("async") else plain), options


@pytest.mark.spec("CM-001.11", "CM-001.12", "CM-001.13", "CM-001.14", "CM-004.6")
@pytest.mark.parametrize("kind", KINDS)
async def test_every_message_has_its_events_whatever_the_handler_is(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, kind: str
) -> None:
    raised = KeyError("x")

    def work(messages: list[Any]) -> None:
        time.sleep(0.02)
        if any(message.data["n"] == 1 for message in messages):
            raise raised

    handler, options = handler_of(kind, work)
    engine = make_engine(handler, **options)
    heard: list[Any] = []
    errors: list[Any] = []
    for name in ("started", "succeeded", "failed"):
        engine.on(name, heard.append)
    engine.on("error", errors.append)
    good, bad = enqueue(2)
    running = run(engine)
    await wait_until_async(lambda: len(heard) == 4 and bool(errors))
    await running.stop()

    by_id = {entry: [event for event in heard if event.message.id == entry] for entry in (good, bad)}
    assert [type(event) for event in by_id[good]] == [Started, Succeeded]
    assert [type(event) for event in by_id[bad]] == [Started, Failed]
    assert by_id[good][1].duration_s >= 0.02
    assert by_id[bad][1].error is raised
    assert by_id[bad][1].duration_s >= 0.02
    assert [(event.error, event.message.id) for event in errors] == [(raised, bad)]


@pytest.mark.spec(
    "CM-001.8", "CM-004.2", "CM-004.3", "CM-004.4", "CM-002.1", "CM-002.2", "CM-002.3", "CM-002.5", "CM-002.6",
    "CM-002.7", "CM-003.4",
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_is_pending_until_its_handler_has_succeeded(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending, kind: str
) -> None:
    held: list[bool] = []

    def work(messages: list[Any]) -> None:
        rows = {row["message_id"].decode() for row in raw.xpending_range(stream, "processor", "-", "+", 100)}
        held.extend(message.id in rows for message in messages)
        if any(message.data["n"] == 1 for message in messages):
            raise KeyError("x")

    handler, options = handler_of(kind, work)
    _, bad, _ = enqueue(3)
    running = run(make_engine(handler, **options))
    await wait_until_async(lambda: len(held) >= 3 and len(pending()) == 1)
    await running.stop()

    assert all(held)
    assert [row["message_id"].decode() for row in pending()] == [bad]
    # No second entry and no further key: neither for the failed message nor for the others.
    assert raw.xlen(stream) == 3
    assert set(raw.keys("*")) == {stream.encode(), registry_key(stream, "processor").encode()}


@pytest.mark.spec("CM-001.9", "CM-004.4", "CM-006.1")
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_handler_can_acknowledge_early_and_once(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, pending: Pending, kind: str
) -> None:
    left: list[int] = []

    async def awaited(messages: Any, contexts: Any) -> None:
        for ctx in contexts if isinstance(contexts, list) else [contexts]:
            await ctx.ack()
            await ctx.ack()
        left.append(len(pending()))
        raise RuntimeError("after the ack no one tries again")

    def plain(messages: Any, contexts: Any) -> None:
        for ctx in contexts if isinstance(contexts, list) else [contexts]:
            ctx.ack()
            ctx.ack()
        left.append(len(pending()))
        raise RuntimeError("after the ack no one tries again")

    options = {"batch": 1} if "batch" in kind else {}
    enqueue(1)
    raw.config_resetstat()
    running = run(make_engine(awaited if kind.startswith("async") else plain, **options))
    await wait_until_async(lambda: left)
    await running.stop()

    assert left == [0]
    assert raw.info("commandstats")["cmdstat_xack"]["calls"] == 1
    assert pending() == []


@pytest.mark.spec("CM-001.6", "CM-001.7")
@pytest.mark.parametrize("kind", KINDS)
async def test_no_kind_of_handler_exceeds_the_limit_and_each_reaches_it(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, kind: str
) -> None:
    """The first three wait for each other; a fourth at the same time would be seen."""
    lock = threading.Lock()
    active = highest = done = in_hand = 0
    tracked: list[tuple[int, int]] = []
    all_in = threading.Event()

    def enter(messages: Any) -> None:
        nonlocal active, highest, in_hand
        with lock:
            active += 1
            highest = max(highest, active)
            if not all_in.is_set():
                in_hand += len(messages) if isinstance(messages, list) else 1
                if active == 3:  # no handler has ended: the engine tracks these three
                    tracked.append((engine.active_tasks, in_hand))
            if active == 3:
                all_in.set()

    def leave() -> None:
        nonlocal active, done
        with lock:
            active -= 1
            done += 1

    async def awaited(messages: Any, contexts: Any) -> None:
        enter(messages)
        await wait_until_async(all_in.is_set)
        await asyncio.sleep(0.005)
        leave()

    def plain(messages: Any, contexts: Any) -> None:
        enter(messages)
        assert all_in.wait(60)
        leave()

    options: dict[str, Any] = {"batch": 2, "within_s": 0.01} if "batch" in kind else {}
    enqueue(24)
    engine = make_engine(
        awaited if kind.startswith("async") else plain, concurrency=3, claim_idle_ms=600_000, **options
    )
    running = run(engine)
    await wait_until_async(all_in.is_set)
    await wait_until_async(lambda: engine.health().in_flight == 0 and done >= (12 if options else 24))
    report = await running.stop()

    assert highest == 3
    assert [known for known, _ in tracked] == [running for _, running in tracked]
    assert len(tracked) == 1
    assert report.succeeded == 24
    assert engine.active_tasks == 0


@pytest.mark.spec("CM-001.6")
@pytest.mark.parametrize("kind", KINDS)
async def test_messages_that_run_alone_do_not_exceed_the_limit_either(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, kind: str
) -> None:
    """Suspects have a separate worker, and the other workers must be idle meanwhile."""
    lock = threading.Lock()
    active: set[str] = set()
    beside: list[set[str]] = []
    done: set[str] = set()
    ids = enqueue(8)
    suspects = ids[::2]
    raw.xgroup_create(stream, "processor", "0")
    raw.xreadgroup("processor", "dead", {stream: ">"})
    raw.xclaim(stream, "processor", "dead", 0, ids, idle=60_000, retrycount=1, justid=True)
    raw.xclaim(stream, "processor", "dead", 0, suspects, idle=60_000, retrycount=11, justid=True)

    def enter(messages: Any) -> list[str]:
        mine = [message.id for message in (messages if isinstance(messages, list) else [messages])]
        with lock:
            active.update(mine)
            if set(mine) & set(suspects):
                beside.append(active - set(mine))
        return mine

    def leave(mine: list[str]) -> None:
        with lock:
            active.difference_update(mine)
            done.update(mine)

    async def awaited(messages: Any, contexts: Any) -> None:
        mine = enter(messages)
        await asyncio.sleep(0.02)
        leave(mine)

    def plain(messages: Any, contexts: Any) -> None:
        mine = enter(messages)
        time.sleep(0.02)
        leave(mine)

    options: dict[str, Any] = {"batch": 2, "within_s": 0.01} if "batch" in kind else {}
    engine = make_engine(awaited if kind.startswith("async") else plain, concurrency=4, **options)
    engine._shards[0].fetcher._claims._next = {stream: 0.0}
    running = run(engine)
    await wait_until_async(lambda: done == set(ids))
    await running.stop()

    assert beside == [set()] * 4


@pytest.mark.spec("CM-004.8", "CM-004.9", "CM-001.7")
@pytest.mark.parametrize("kind", KINDS)
async def test_after_stop_every_kind_finishes_what_runs_and_begins_nothing(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, kind: str
) -> None:
    begun: list[str] = []
    finished: list[str] = []
    leave = threading.Event()

    def ids_of(messages: Any) -> list[str]:
        return [message.id for message in (messages if isinstance(messages, list) else [messages])]

    async def awaited(messages: Any, contexts: Any) -> None:
        begun.extend(ids_of(messages))
        await wait_until_async(leave.is_set)
        finished.extend(ids_of(messages))

    def plain(messages: Any, contexts: Any) -> None:
        begun.extend(ids_of(messages))
        assert leave.wait(60)
        finished.extend(ids_of(messages))

    options = {"batch": 1} if "batch" in kind else {}
    enqueue(6)
    engine = make_engine(
        awaited if kind.startswith("async") else plain, concurrency=2, claim_idle_ms=600_000, grace_s=60.0, **options
    )
    running = run(engine)
    await wait_until_async(lambda: len(begun) == 2)
    engine.stop()
    waiting = asyncio.create_task(engine.wait_for_active_tasks())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    leave.set()
    await waiting
    report = await running.task

    assert sorted(finished) == sorted(begun)
    assert (len(begun), report.succeeded) == (2, 2)
    assert {row["message_id"].decode() for row in pending()}.isdisjoint(finished)


@pytest.mark.spec("CM-001.10", "CM-001.2", "CM-002.6", "CM-003.1")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_failed_message_is_delivered_again_to_the_same_name_once_stale(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending, kind: str
) -> None:
    """The test makes it stale: with a short claim time a busy machine would."""
    counts: list[int] = []
    owners: set[str] = set()

    def work(messages: list[Any]) -> None:
        owners.update(row["consumer"].decode() for row in pending())
        counts.extend(message.delivery_count for message in messages)
        if len(counts) < 3:
            raise RuntimeError("not yet")

    handler, options = handler_of(kind, work)
    (entry,) = enqueue(1)
    engine = make_engine(handler, **{**options, "claim_idle_ms": 60_000, "consumer_id": "worker-1", "block_ms": 50})
    running = run(engine)
    for failures in (1, 2):
        await wait_until_async(lambda n=failures: len(counts) == n and engine.health().in_flight == 0)  # type: ignore[misc,arg-type]
        raw.xclaim(stream, "processor", "worker-1", 0, [entry], idle=3_600_000, justid=True)
        engine._shards[0].fetcher._claims._next = {stream: 0.0}
    await wait_until_async(lambda: len(counts) == 3)
    names = [row["name"].decode() for row in raw.xinfo_consumers(stream, "processor")]
    await running.stop()

    assert counts == [1, 2, 3]
    assert owners == {"worker-1"}
    assert names == ["worker-1"]
    assert pending() == []


@pytest.mark.spec("CM-004.9")
@pytest.mark.parametrize("kind", ["async", "plain batch"])
async def test_waiting_for_active_tasks_includes_their_acknowledgements(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    pending: Pending,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    kind: str,
) -> None:
    """The replies are held back: a wait that ended with the handler would end now."""
    proxy = fault_proxy(redis_url)
    finished = threading.Event()

    def work(_messages: list[Any]) -> None:
        proxy.stall(Direction.TO_CLIENT)
        finished.set()

    handler, options = handler_of(kind, work)
    enqueue(1)
    async with redis.asyncio.Redis.from_url(proxy.url_for(redis_url)) as far:
        engine = make_engine(handler, redis=far, grace_s=60.0, **options)
        running = run(engine)
        await wait_until_async(finished.is_set)
        await wait_until_async(lambda: engine.active_tasks == 0)
        waiting = asyncio.create_task(engine.wait_for_active_tasks())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        proxy.resume()
        await waiting
        assert pending() == []
        await running.stop()
