"""An engine that cannot acknowledge ends; an engine that is acknowledging has lost nothing."""

import asyncio
import time
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Pending, Run

from conquiet.core.backoff import Backoff
from conquiet.errors import QueueError
from conquiet.redis_transport.async_connection import ConnectionLostError
from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async


async def test_an_engine_that_can_acknowledge_nothing_any_more_ends(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch, pending: Pending
) -> None:
    """If it continued, its work would be useless: other workers would repeat everything."""

    async def done(_: RuntimeMessage, __: MessageContext) -> None:
        # By the connection for acknowledgements only: the other one reads, and has capacity left.
        await asyncio.sleep(0)

    engine = make_engine(done, max_reconnects=2, reconnect=Backoff(base_s=0.01, cap_s=0.01))
    (shard,) = engine._shards
    running = run(engine)
    await wait_until_async(lambda: shard.fetcher.is_blocked)

    async def not_to_be_had() -> None:
        raise ConnectionLostError(RedisConnectionError())

    await shard.acknowledger._connection.close()
    monkeypatch.setattr(shard.acknowledger._connection, "open", not_to_be_had)
    monkeypatch.setattr(shard.acknowledger, "take_batch", lambda: None)  # the reader takes no acknowledgements
    enqueue(1)

    with pytest.raises(QueueError):
        await asyncio.wait_for(running.task, 60)
    assert len(pending()) == 1
    assert engine.report is not None
    assert engine.report.unacknowledged


async def test_due_acknowledgements_are_sent_alone_if_no_read_follows(
    make_engine: MakeEngine, enqueue: Enqueue, pending: Pending, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: RuntimeMessage, __: MessageContext) -> None:
        raise AssertionError

    engine = make_engine(never)
    (shard,) = engine._shards
    await shard.open()
    enqueue(3)
    takes = shard.fetcher._scheduler.plan(3)
    (first, second, last), _ = await shard._reader.read(takes, wait_ms=0, acks=None)
    borrow, later = shard.acknowledger.execute, [second]

    async def finished_meanwhile(commands: list[bytes]) -> Any:
        if later:
            shard.acknowledger.add(later.pop())
        return await borrow(commands)

    monkeypatch.setattr(shard.acknowledger, "execute", finished_meanwhile)
    shard.acknowledger.start()
    shard.acknowledger.add(first)
    await wait_until_async(lambda: [row["message_id"].decode() for row in pending()] == [last.id])
    shard.acknowledger.add(last)
    await asyncio.wait_for(shard.acknowledger.flush(), 60)

    assert pending() == []
    assert shard.acknowledger.unconfirmed == 0
    assert engine._table.snapshot() == []
    assert shard.reconnects == 0  # nothing has failed, so nothing was waited for
    assert await shard.close() == []
    await engine._topology.close()


async def test_a_heartbeat_between_an_early_ack_and_its_answer_finds_no_loss(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[bool] = []

    async def acks(_: RuntimeMessage, ctx: MessageContext) -> None:
        await ctx.ack()
        reported.append(ctx.lease_lost)

    engine = make_engine(acks, claim_idle_ms=600_000)
    (shard,) = engine._shards
    borrow = shard.acknowledger.execute

    async def answered_late(commands: list[bytes]) -> Any:
        replies = await borrow(commands)
        await asyncio.to_thread(engine._heartbeat.beat, time.monotonic() + 300)  # as far on as makes it due
        return replies

    monkeypatch.setattr(shard.acknowledger, "execute", answered_late)
    running = run(engine)
    enqueue(1)
    await wait_until_async(lambda: reported)
    await running.stop()

    assert reported == [False]
    assert running.errors == []


async def test_a_stream_paused_during_a_claim_is_not_read_after_it(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def done(_: RuntimeMessage, __: MessageContext) -> None:
        return None

    engine = make_engine(done)
    (shard,) = engine._shards
    claim = shard._reader.pending.claim
    reads: list[int] = []

    async def withheld_meanwhile(*arguments: Any) -> Any:
        found = await claim(*arguments)
        if not reads:
            engine.pause_streams([stream])
            reads.append(shard.fetcher.reads_begun)
        return found

    monkeypatch.setattr(shard._reader.pending, "claim", withheld_meanwhile)
    shard.fetcher._claims._next = {stream: 0.0}
    running = run(engine)
    await wait_until_async(lambda: reads and not shard.fetcher._streams)

    assert shard.fetcher.reads_begun == reads[0]
    await running.stop()


async def test_a_stop_aborts_an_opening_that_never_ends(
    make_engine: MakeEngine, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: RuntimeMessage, __: MessageContext) -> None:
        raise AssertionError

    engine = make_engine(never)
    opening = asyncio.Event()

    async def takes_for_ever() -> None:
        opening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(engine._shards[0], "open", takes_for_ever)
    running = run(engine)
    await opening.wait()

    report = await running.stop()

    assert (report.succeeded, running.errors) == (0, [])
