"""A server that the handler needs is unavailable: the engine pauses, probes and resumes, and no message is charged."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Pending, Run

from conquiet.core.backoff import Backoff
from conquiet.errors import CommitUnknownError, DatabaseUnavailableError, InfrastructureError
from conquiet.runtime import Consumer, MessageContext, RuntimeMessage, SyncMessageContext
from conquiet.runtime.pending_reader import PendingReader
from conquiet.testing import wait_until_async

FAST = Backoff(base_s=0.05, cap_s=2.0, factor=1.0, jitter=0.0)


@pytest.mark.parametrize("error", [DatabaseUnavailableError, CommitUnknownError, InfrastructureError])
@pytest.mark.parametrize("concurrency", [1, 10])
async def test_an_outage_charges_no_message_a_delivery(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending, error: type[Exception], concurrency: int
) -> None:
    """Thirty faults, where a message may be delivered twice."""
    enqueue(20)
    counts: list[int] = []
    done: Counter[str] = Counter()
    exhausted: list[str] = []
    faults = 30

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal faults
        counts.append(message.delivery_count)
        if faults:
            faults -= 1
            raise error("the database is away")
        done[message.id] += 1

    async def on_exhausted(message: RuntimeMessage, ctx: MessageContext) -> None:
        exhausted.append(message.id)

    engine = make_engine(
        handler, concurrency=concurrency, max_deliveries=2, outage=FAST, on_exhausted=on_exhausted, claim_idle_ms=400
    )
    running = run(engine)
    await wait_until_async(lambda: len(done) == 20)
    report = await running.stop()

    assert set(counts) == {1}
    assert set(done.values()) == {1}
    assert (exhausted, pending(), report.failed, report.succeeded) == ([], [], 30, 20)


async def test_a_pause_is_logged_once_probed_by_one_message_and_not_ready(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(30)
    away = True
    at_once: list[int] = []
    begun = 0

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal begun
        begun += 1
        if away:
            at_once.append(engine.active_tasks)
            await asyncio.sleep(0)
            raise DatabaseUnavailableError("the database is away")

    engine: Consumer = make_engine(handler, concurrency=5, outage=FAST, claim_idle_ms=400)
    with caplog.at_level(logging.INFO, "conquiet.runtime"):
        running = run(engine)
        await wait_until_async(lambda: len(at_once) >= 12)
        health = engine.health()
        away = False
        await wait_until_async(lambda: engine.health().ready)
        await wait_until_async(lambda: engine.health().streams[message_stream(engine)].succeeded == 30)
        await running.stop()

    assert (health.paused, health.ready) == (True, False)
    assert at_once[-5:] == [1] * 5
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([line for line in lines if line.startswith("consumption paused")]) == 1
    assert len([line for line in lines if line.startswith("consumption resumed")]) == 1
    assert not [line for line in lines if line.startswith("handler failed")]


def message_stream(engine: Consumer) -> str:
    (stream,) = engine.health().streams
    return stream


async def test_messages_fetched_before_the_pause_are_released_immediately(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    """Other hosts may reach the database: nothing waits here for the pause to end."""
    begun = 0

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal begun
        begun += 1
        if begun > 20:
            raise DatabaseUnavailableError("the database is away")

    engine: Consumer = make_engine(handler, outage=Backoff(base_s=60, cap_s=60, jitter=0.0))
    running = run(engine)
    enqueue(20)  # quick ones: the engine prefetches from now on
    await wait_until_async(lambda: begun == 20)
    enqueue(100)
    await wait_until_async(lambda: engine.health().paused)
    await wait_until_async(lambda: engine.health().in_flight == 0)
    rows = pending()
    await running.stop()

    assert rows
    assert {row["times_delivered"] for row in rows} == {0}
    assert min(row["time_since_delivered"] for row in rows) > 3_600_000  # stale to every engine


async def test_a_message_that_was_acknowledged_before_the_fault_is_not_released(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    enqueue(1)

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await ctx.ack()
        raise DatabaseUnavailableError("the database is away")

    engine: Consumer = make_engine(handler, outage=FAST)
    running = run(engine)
    await wait_until_async(lambda: engine.health().paused)
    await running.stop()

    assert pending() == []


async def test_a_stop_ends_a_pause_at_once(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, pending: Pending
) -> None:
    enqueue(3)

    def handler(message: RuntimeMessage, ctx: SyncMessageContext) -> None:
        raise DatabaseUnavailableError("the database is away")

    engine: Consumer = make_engine(handler, outage=Backoff(base_s=600, cap_s=600, jitter=0.0))
    running = run(engine)
    await wait_until_async(lambda: engine.health().paused)
    report = await asyncio.wait_for(running.stop(), 60)

    assert report.succeeded == 0
    assert {row["times_delivered"] for row in pending()} <= {0}


async def test_an_ordinary_failure_of_the_probe_ends_the_pause(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    enqueue(2)
    errors: list[type[Exception]] = [DatabaseUnavailableError, ValueError]
    done = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        if errors:
            raise errors.pop(0)("no")
        done.set()

    engine: Consumer = make_engine(handler, outage=FAST, claim_idle_ms=400)
    running = run(engine)
    await asyncio.wait_for(done.wait(), 20)
    await wait_until_async(lambda: not engine.health().paused)
    await running.stop()


@pytest.mark.parametrize("wrong", [None, 1, "soon"])
def test_the_pauses_must_be_a_backoff(make_engine: Callable[..., Consumer], wrong: Any) -> None:
    with pytest.raises(ValueError, match="outage must be a Backoff"):
        make_engine(lambda message, ctx: None, outage=wrong)


async def test_an_outage_during_a_claim_reads_nothing_and_blames_no_redis(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Capacity is requested before the claim; without capacity a read would name no stream, which Redis refuses."""
    claim = PendingReader.claim
    begun, away = asyncio.Event(), asyncio.Event()
    outages = 0

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal outages
        if not outages:
            begun.set()
            await away.wait()
            outages += 1
            raise DatabaseUnavailableError("the database is away")

    async def claim_while_an_outage_begins(*arguments: Any) -> Any:
        claimed = await claim(*arguments)
        if begun.is_set() and not away.is_set():
            away.set()
            await wait_until_async(lambda: engine.health().paused)
        return claimed

    monkeypatch.setattr(PendingReader, "claim", claim_while_an_outage_begins)
    engine: Consumer = make_engine(handler, concurrency=4, outage=FAST, claim_idle_ms=400)
    running = run(engine)
    enqueue(1)
    await wait_until_async(lambda: outages == 1 and engine.health().ready)
    await wait_until_async(lambda: engine.health().streams[message_stream(engine)].succeeded == 1)
    await running.stop()

    assert [record.getMessage() for record in caplog.records if record.name == "conquiet.outages"] == []
