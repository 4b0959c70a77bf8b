"""Streams that are paused and resumed: no message runs twice, and no idle host or server is kept busy."""

import asyncio
from typing import Any

from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run
from tests.redis_clients import RawRedis

from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async


async def test_a_stream_resumed_during_a_claim_runs_stale_work_once(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str, enqueue: Enqueue
) -> None:
    """If it were claimed before our own pending entries were read, it would count as one of them and run twice."""
    other = f"{stream}-other"
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    (entry,) = enqueue()
    raw.xreadgroup("processor", "dead-host", {stream: ">"})
    raw.xclaim(stream, "processor", "dead-host", 0, [entry], idle=600_000)
    runs: list[str] = []
    finish = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        runs.append(message.id)
        await finish.wait()

    engine = make_engine(handler, streams=[stream, other], concurrency=4, claim_idle_ms=2_000)
    (shard,) = engine._shards
    reader: Any = shard._reader.pending
    claim = reader.claim

    async def claim_and_release(name: str, cursor: str, count: int) -> Any:
        found = await claim(name, cursor, count)
        engine.pause_streams([])
        return found

    engine.pause_streams([stream])
    reader.claim = claim_and_release
    shard.fetcher._claims._next = {other: -1.0, stream: -0.5}  # both in one look, the other one first
    engine_run = run(engine)
    await wait_until_async(lambda: runs)
    enqueue(to=other)  # a later read: by now our own pending entries have been read
    await wait_until_async(lambda: len(runs) > 1)

    assert runs.count(entry) == 1
    finish.set()
    await engine_run.stop()


async def test_a_message_acknowledged_during_its_claim_is_not_run_again(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str, enqueue: Enqueue
) -> None:
    """The claim's reply is older than the acknowledgement, which went over another connection."""
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    (entry,) = enqueue()
    raw.xreadgroup("processor", "dead-host", {stream: ">"})
    raw.xclaim(stream, "processor", "dead-host", 0, [entry], idle=600_000)
    runs: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        runs.append(message.id)

    engine = make_engine(handler, claim_idle_ms=2_000)
    (shard,) = engine._shards
    reader: Any = shard._reader.pending
    still_ours = reader._still_ours

    async def acknowledged_meanwhile(*given: Any) -> Any:
        raw.xack(stream, "processor", entry)
        return await still_ours(*given)

    reader._still_ours = acknowledged_meanwhile
    engine_run = run(engine)
    await wait_until_async(lambda: raw.xpending(stream, "processor")["pending"] == 0)
    (fresh,) = enqueue()
    await wait_until_async(lambda: fresh in runs)

    assert runs == [fresh]
    await engine_run.stop()


async def test_pausing_a_stream_ends_one_waiting_read_and_no_later_one(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str, enqueue: Enqueue
) -> None:
    """Calls are counted, not time. Ending every read early would keep an idle host and its server busy."""

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        pass

    def calls() -> int:
        return int(raw.info("commandstats").get("cmdstat_client|unblock", {}).get("calls", 0))

    engine = make_engine(handler, streams=[stream, f"{stream}-other"])
    engine_run = run(engine)
    await wait_until_async(lambda: engine._shards[0].fetcher.is_blocked)
    before = calls()
    schedule = engine._shards[0].fetcher._claims
    schedule._next[stream] = 0.0
    engine.pause_streams([stream])
    await asyncio.sleep(0.5)

    # Its scan is postponed: a scan that stayed due would keep every read of the others from waiting.
    await wait_until_async(lambda: schedule._next[stream] > 0.0)
    # One is enough; a second may be under way before the read's end is seen here.
    assert 1 <= calls() - before <= 5
    await engine_run.stop()
