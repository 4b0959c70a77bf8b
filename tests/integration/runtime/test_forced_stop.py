"""A second stop waits neither for a server that does not reply nor for threads that handlers use."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio
from tests.integration.runtime.conftest import BeatQuickly, Enqueue, MakeEngine, Pending, Run

from conquiet.errors import LeaseLostError
from conquiet.runtime import MessageContext, RuntimeMessage, StopReport
from conquiet.testing import FaultProxy, wait_until_async

SOON_S = 5.0
"""Half of the time that the engine waits for a reply of a silent server."""


@pytest.fixture
def proxy(redis_url: str, fault_proxy: Callable[[str], FaultProxy]) -> FaultProxy:
    return fault_proxy(redis_url)


@pytest.fixture
async def client(proxy: FaultProxy, redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(proxy.url_for(redis_url)) as client:
        yield client


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


async def forced(running: Any) -> StopReport:
    """Stop twice, and see that nothing is left over."""
    running.engine.stop()
    await asyncio.sleep(0)
    running.engine.stop()
    report: StopReport = await asyncio.wait_for(running.task, SOON_S)

    assert [thread for thread in threading.enumerate() if thread.name.startswith("conquiet-lease")] == []
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("conquiet")] == []
    return report


async def test_a_read_that_is_not_answered_is_cut_off_and_reported(
    make_engine: MakeEngine, run: Run, client: redis.asyncio.Redis, proxy: FaultProxy
) -> None:
    running = run(make_engine(print, redis=client))
    await wait_until_async(lambda: running.engine._shards[0].fetcher.is_blocked)
    await asyncio.to_thread(proxy.stall)

    report = await forced(running)

    assert report.unanswered_reads == 1
    await asyncio.to_thread(proxy.resume)


async def test_a_connection_that_is_not_answered_is_cut_off(
    make_engine: MakeEngine, run: Run, client: redis.asyncio.Redis, proxy: FaultProxy
) -> None:
    running = run(make_engine(print, redis=client))
    (shard,) = running.engine._shards
    await wait_until_async(lambda: shard.fetcher.is_blocked)
    await asyncio.to_thread(proxy.stall)
    assert shard.connection._protocol is not None
    shard.connection._protocol.abort()
    await wait_until_async(lambda: shard.connection._opening is not None)

    report = await forced(running)

    assert report.unanswered_reads == 1
    await asyncio.to_thread(proxy.resume)


async def test_unsent_acknowledgements_and_unstarted_messages_are_reported(
    make_engine: MakeEngine,
    run: Run,
    client: redis.asyncio.Redis,
    proxy: FaultProxy,
    enqueue: Enqueue,
    pending: Pending,
) -> None:
    ids = enqueue(60)
    begun, leave = asyncio.Event(), asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        if message.data["n"] == 40:
            begun.set()
            await leave.wait()

    running = run(make_engine(handler, redis=client, claim_idle_ms=600_000))
    await begun.wait()
    await wait_until_async(lambda: running.engine.health().in_flight == 20)
    await asyncio.to_thread(proxy.stall)
    running.engine.stop()
    leave.set()
    await wait_until_async(lambda: running.engine.health().unacknowledged == 1)

    report = await forced(running)

    assert (report.succeeded, report.released, report.unreleased) == (41, 0, 19)
    assert [message_id for _, message_id in report.unacknowledged] == [ids[40]]
    assert [row["message_id"].decode() for row in pending()] == ids[40:]
    await asyncio.to_thread(proxy.resume)


async def test_a_heartbeat_in_the_middle_of_a_call_is_ended(
    make_engine: MakeEngine,
    run: Run,
    client: redis.asyncio.Redis,
    proxy: FaultProxy,
    enqueue: Enqueue,
    beat_quickly: BeatQuickly,
    patch: pytest.MonkeyPatch,
) -> None:
    enqueue(1)
    begun, beating = asyncio.Event(), threading.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    engine = beat_quickly(make_engine(handler, redis=client, claim_idle_ms=600_000))
    extend = engine._heartbeat._extend

    def noted(*arguments: Any) -> None:
        beating.set()
        extend(*arguments)

    running = run(engine)
    await begun.wait()
    await asyncio.to_thread(proxy.stall)
    patch.setattr(engine._heartbeat, "_extend", noted)
    await wait_until_async(beating.is_set)

    report = await forced(running)

    assert len(report.abandoned) == 1
    assert running.errors == []
    await asyncio.to_thread(proxy.resume)


async def test_threads_that_handlers_have_taken_hold_nothing_up(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    """All of asyncio's, that is. An engine that needed one for its end would wait for theirs."""
    leave = threading.Event()
    enqueue(40)

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await asyncio.to_thread(leave.wait, 20)

    running = run(make_engine(handler, concurrency=40))
    await wait_until_async(lambda: running.engine.active_tasks == 40)

    report = await forced(running)

    assert len(report.abandoned) == 40
    leave.set()


async def test_a_worker_that_waits_for_slow_callbacks_has_abandoned_nothing(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, patch: pytest.MonkeyPatch
) -> None:
    enqueue(30)
    leave = asyncio.Event()

    async def slow(_: Any) -> None:
        await leave.wait()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        if message.data["n"] == 9:
            await asyncio.Event().wait()

    engine = make_engine(handler, concurrency=20)
    patch.setattr(engine._dispatcher, "_limit", 10)
    engine.on("succeeded", slow)
    running = run(engine)
    await wait_until_async(lambda: engine._dispatcher.is_full and engine.active_tasks == 20)
    engine.stop()
    engine.stop()
    await wait_until_async(lambda: engine.active_tasks == 0)
    leave.set()
    report = await asyncio.wait_for(running.task, SOON_S)

    assert report.failed == 1
    assert len(report.abandoned) == 1


async def test_a_cancelled_handler_that_succeeds_is_not_abandoned(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    enqueue(1)
    begun = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    running = run(make_engine(handler))
    await begun.wait()

    report = await forced(running)

    assert (report.succeeded, report.abandoned) == (1, ())
    assert pending() == []


async def test_work_of_a_handler_after_the_end_is_not_a_success(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    """The handler has caught its cancellation and continued. The engine neither keeps nor acknowledges its message."""
    (message_id,) = enqueue(1)
    begun, leave = asyncio.Event(), asyncio.Event()
    ends: list[Any] = []
    refused: list[BaseException] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        begun.set()
        while not leave.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await leave.wait()
        for call in (ctx.check_lease, ctx.ack):
            try:
                if (rest := call()) is not None:
                    await rest
            except LeaseLostError as error:
                refused.append(error)

    engine = make_engine(handler)
    engine.on("succeeded", ends.append)
    engine.on("failed", ends.append)
    running = run(engine)
    await begun.wait()
    engine.stop()
    engine.stop()
    report = await asyncio.wait_for(running.task, SOON_S)
    leave.set()
    await wait_until_async(lambda: ends)

    assert [entry for _, entry in report.abandoned] == [message_id]
    assert [type(error) for error in refused] == [LeaseLostError, LeaseLostError]
    assert [type(event.error) for event in ends] == [LeaseLostError]
    assert len(pending()) == 1
