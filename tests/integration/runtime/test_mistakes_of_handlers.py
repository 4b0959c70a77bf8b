"""Mistakes of handlers must not cost their message, their slot, or another message."""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.runtime.conftest import BeatQuickly, Enqueue, MakeEngine, Pending, Run
from tests.redis_clients import RawRedis

from conquiet.core.backoff import Backoff
from conquiet.errors import ConfigurationError, LeaseLostError, QueueError
from conquiet.metrics.registry import RUNTIME_LEASES_LOST_TOTAL
from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async


async def coroutine(_: RuntimeMessage, __: MessageContext) -> None:
    raise AssertionError("nobody awaits it")


def generator(_: RuntimeMessage, __: MessageContext) -> Any:
    yield


async def async_generator(_: RuntimeMessage, __: MessageContext) -> Any:
    yield


@pytest.mark.parametrize("function", [generator, async_generator, functools.wraps(generator)(lambda *_: None)])
def test_a_handler_with_a_yield_is_refused_at_once(make_engine: MakeEngine, function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="generator"):
        make_engine(function)


@pytest.mark.parametrize(
    "handler",
    [
        lambda *given: coroutine(*given),  # noqa: PLW0108 - a plain function around it is the point
        lambda *given: generator(*given),  # noqa: PLW0108 - the same
        lambda message, ctx: next(iter(())),
        lambda message, ctx: exec("raise SystemExit(3)"),
        lambda message, ctx: exec("raise KeyboardInterrupt"),
        lambda message, ctx: exec("raise GeneratorExit"),
    ],
    ids=["coroutine", "generator", "StopIteration", "SystemExit", "KeyboardInterrupt", "GeneratorExit"],
)
async def test_a_plain_handlers_mistake_fails_its_message_and_nothing_else(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, handler: Callable[..., Any]
) -> None:
    failed: list[Any] = []
    engine = make_engine(handler, concurrency=1, claim_idle_ms=600_000)
    engine.on("failed", failed.append)
    running = run(engine)
    enqueue(3)
    await wait_until_async(lambda: len(failed) == 3)
    await running.stop()

    assert {type(event.error) for event in failed} <= {ConfigurationError, RuntimeError}
    assert len(pending()) == 3


async def forgets_await(*given: Any) -> Any:
    return coroutine(*given)


async def forgets_await_later(*given: Any) -> Any:
    await asyncio.sleep(0)
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("handler", [forgets_await, forgets_await_later])
async def test_an_await_that_was_forgotten_is_no_success(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, handler: Callable[..., Any]
) -> None:
    enqueue(2)
    failed: list[Any] = []
    engine = make_engine(handler, claim_idle_ms=600_000)
    engine.on("failed", failed.append)
    running = run(engine)
    await wait_until_async(lambda: len(failed) == 2)
    await running.stop()

    assert {type(event.error) for event in failed} == {ConfigurationError}
    assert len(pending()) == 2


class OddError(BaseException):
    """Neither an ``Exception`` nor an end of anything."""


async def odd(_: RuntimeMessage, __: MessageContext) -> None:
    raise OddError


async def odd_later(_: RuntimeMessage, __: MessageContext) -> None:
    await asyncio.sleep(0)
    raise BaseExceptionGroup("of a task group", [OddError()])


def odd_in_a_thread(_: RuntimeMessage, __: MessageContext) -> None:
    raise OddError


@pytest.mark.parametrize("handler", [odd, odd_later, odd_in_a_thread])
async def test_an_error_that_is_not_an_exception_costs_no_worker(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, handler: Callable[..., Any]
) -> None:
    enqueue(3)
    failed: list[Any] = []
    engine = make_engine(handler, concurrency=1, claim_idle_ms=600_000)
    engine.on("failed", failed.append)
    running = run(engine)
    await wait_until_async(lambda: len(failed) == 3)
    report = await running.stop()

    assert (report.failed, report.released, len(pending())) == (3, 0, 3)


async def test_nor_does_it_out_of_on_exhausted(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    enqueue(2)
    raw.xgroup_create(stream, "processor", "0")
    raw.xreadgroup("processor", "gone", {stream: ">"})
    raw.xclaim(
        stream,
        "processor",
        "gone",
        0,
        [row["message_id"] for row in raw.xpending_range(stream, "processor", "-", "+", 2)],
        idle=700_000,
    )

    running = run(make_engine(print, on_exhausted=odd, max_deliveries=1, concurrency=1, claim_idle_ms=600_000))
    await wait_until_async(lambda: len(running.errors) == 2)
    await running.stop()

    assert {type(error) for error in running.errors} == {OddError}


async def test_a_process_that_is_to_end_takes_its_message_for_failed(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    """A signal handler of the caller's has raised it where a handler happened to run."""
    (message_id,) = enqueue(1)
    engine = make_engine(print)
    failed: list[Any] = []
    engine.on("failed", failed.append)

    def ends(_: RuntimeMessage, __: Any) -> None:
        raise SystemExit

    pool: Any = engine._pool
    runner = pool._work
    runner._execute = ends
    with pytest.raises(SystemExit):
        await runner(RuntimeMessage(engine._streams[0], message_id, {}, leased_at=time.monotonic()))

    assert [event.message.id for event in failed] == [message_id]


async def test_a_lease_loss_found_by_extend_is_reported_and_counted_once(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, beat_quickly: BeatQuickly
) -> None:
    enqueue(1)
    failed: list[Any] = []
    beats = 0

    async def asks(message: RuntimeMessage, ctx: MessageContext) -> None:
        raw.xclaim(stream, "processor", "other", 0, [message.id])
        with pytest.raises(LeaseLostError):
            await ctx.extend()
        begun = beats
        await wait_until_async(lambda: beats >= begun + 2)  # it has nothing to add

    engine = make_engine(asks, claim_idle_ms=600_000)
    heartbeat: Any = engine._heartbeat
    beat = heartbeat.beat

    def counted(now: float) -> None:
        nonlocal beats
        beat(now)
        beats += 1

    heartbeat.beat = counted
    engine.on("failed", failed.append)
    before = RUNTIME_LEASES_LOST_TOTAL.labels(stream)._value.get()
    running = run(beat_quickly(engine))
    await wait_until_async(lambda: failed)
    await running.stop()

    assert [type(error) for error in running.errors] == [LeaseLostError]
    assert RUNTIME_LEASES_LOST_TOTAL.labels(stream)._value.get() - before == 1


async def test_a_cancellation_that_a_handler_left_behind_costs_no_worker(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    done: list[int] = []

    async def careless(message: RuntimeMessage, _: MessageContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        done.append(message.data["n"])
        task.cancel()

    running = run(make_engine(careless, concurrency=1))
    enqueue(6)
    await wait_until_async(lambda: len(done) == 6)
    enqueue(1)
    await wait_until_async(lambda: len(done) == 7)
    await running.stop()


async def test_a_message_in_other_hands_cannot_be_acknowledged_here(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str, pending: Pending
) -> None:
    (message_id,) = enqueue(1)
    refused: list[BaseException] = []
    contexts: list[MessageContext] = []

    async def acks_too_late(message: RuntimeMessage, ctx: MessageContext) -> None:
        contexts.append(ctx)
        raw.xclaim(stream, "processor", "other", 0, [message.id])
        message.lose()  # as the heartbeat does
        try:
            await ctx.ack()
        except LeaseLostError as error:
            refused.append(error)

    running = run(make_engine(acks_too_late))
    await wait_until_async(lambda: refused)
    await running.stop()

    assert [(row["message_id"].decode(), row["consumer"]) for row in pending()] == [(message_id, b"other")]
    with pytest.raises(LeaseLostError):
        await contexts[0].ack()


async def test_nothing_is_sent_after_the_end(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    """For example by a thread that was abandoned at the stop: another engine may own the entry by then."""
    contexts: list[MessageContext] = []

    async def fails(_: RuntimeMessage, ctx: MessageContext) -> None:
        contexts.append(ctx)
        raise LookupError

    engine = make_engine(fails)
    running = run(engine)
    enqueue(1)
    await wait_until_async(lambda: contexts)
    await running.stop()

    with pytest.raises(QueueError):
        await engine._leases.acknowledge(contexts[0].message)
    assert not engine._shards[0].acknowledger._connection.is_open
    assert len(pending()) == 1


async def test_a_lost_read_of_failing_messages_starves_no_stream(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, stream: str, raw: RawRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is capacity for one message: the first one, failed, must not be claimed again in place of the second."""
    runs: list[int] = []

    async def failing(message: RuntimeMessage, _: MessageContext) -> None:
        runs.append(message.data["n"])
        raise LookupError

    engine = make_engine(
        failing, concurrency=1, prefetch=0, claim_idle_ms=600_000, consumer_id="me", reconnect=Backoff(base_s=0.01)
    )
    (shard,) = engine._shards
    read, lost = shard._reader.read, asyncio.Event()

    async def broken_once(*arguments: Any, **options: Any) -> Any:
        if not lost.is_set():
            lost.set()
            raw.xreadgroup("processor", "me", {stream: ">"}, count=5)  # delivered, and the reply never seen
            await shard.connection.close()
        return await read(*arguments, **options)

    monkeypatch.setattr(shard._reader, "read", broken_once)
    enqueue(5)
    running = run(engine)
    await wait_until_async(lambda: len(runs) >= 5)
    enqueue(1, n=99)
    await wait_until_async(lambda: 99 in runs)
    await running.stop()

    assert sorted(runs) == [0, 1, 2, 3, 4, 99]


async def test_a_handler_over_its_time_uses_up_no_deliveries(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, stream: str
) -> None:
    """After max_lease_s any engine may claim its message. A claim by the same engine is not a new attempt."""
    enqueue(1)
    leave = asyncio.Event()

    async def long(_: RuntimeMessage, __: MessageContext) -> None:
        await leave.wait()

    engine = make_engine(long, concurrency=2, claim_idle_ms=100, max_lease_s=0.2)
    (shard,) = engine._shards
    running = run(engine)
    claims: list[int] = []
    reader: Any = shard._reader.pending
    claim = reader.claim

    async def counted(*arguments: Any) -> Any:
        found = await claim(*arguments)
        claims.append(len(running.errors))
        return found

    reader.claim = counted
    await wait_until_async(lambda: running.errors)  # its lease is reported as lost
    begun = len(claims)
    await wait_until_async(lambda: len(claims) >= begun + 8, message=lambda: f"{running.errors} {claims}")
    (row,) = pending()
    leave.set()
    await running.stop()

    assert row["times_delivered"] <= 2


async def test_a_refusal_for_the_moment_leaves_finished_work_acknowledged_later(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, pending: Pending
) -> None:
    done: list[int] = []

    async def work(message: RuntimeMessage, _: MessageContext) -> None:
        done.append(message.data["n"])
        if len(done) == 1:
            raw.config_set("min-replicas-to-write", 1)  # from now on every write is refused: NOREPLICAS

    running = run(make_engine(work, claim_idle_ms=600_000, reconnect=Backoff(base_s=0.02, cap_s=0.1)))
    try:
        enqueue(5)
        await wait_until_async(lambda: running.errors)
    finally:
        raw.config_set("min-replicas-to-write", 0)
    await wait_until_async(lambda: len(done) == 5 and not pending())
    await running.stop()

    assert sorted(done) == [0, 1, 2, 3, 4]


async def test_an_entry_that_comes_twice_runs_once_at_a_time(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    """The group was set back, as by a failover to a replica that was behind."""
    running_now, most, leave = 0, 0, asyncio.Event()

    async def work(_: RuntimeMessage, __: MessageContext) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await leave.wait()
        running_now -= 1

    engine = make_engine(work, concurrency=5)
    running = run(engine)
    enqueue(1)
    await wait_until_async(lambda: running_now == 1)
    raw.xgroup_setid(stream, "processor", "0")
    begun = engine._shards[0].fetcher.reads_begun
    enqueue(1, n=2)
    await wait_until_async(lambda: engine._shards[0].fetcher.reads_begun > begun and running_now == 2)
    leave.set()
    await running.stop()

    assert most == 2
