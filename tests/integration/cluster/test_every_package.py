"""Every package works with a Redis Cluster as with one Redis: over many slots, while slots move."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from conquiet import App, AppSettings
from conquiet.cli.app import app as command
from conquiet.config import QueueConfig
from conquiet.core.backoff import Backoff
from conquiet.management import RedisAdmin, list_streams
from conquiet.processor import DeadFilter, JobContext, JobState, Processor, ProcessorSettings, RetryPolicy, SyncEmitter
from conquiet.processor.keys import keys_of
from conquiet.queue import QueueConsumer, StreamHousekeeper
from conquiet.queue.retention import Retention
from conquiet.redis_transport.routing import slot_of
from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.testing import RedisClusterServer, wait_until, wait_until_async
from conquiet.transactional import ToProcessor, ToStream

STREAMS = [f"shop-{number}" for number in range(4)]
METADATA = MetaData()
SALES = Table("sales", METADATA, Column("id", String(40), primary_key=True))


@pytest.fixture
async def client(redis_cluster: RedisClusterServer) -> AsyncIterator[redis.asyncio.RedisCluster]:
    made = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)
    yield made
    await made.aclose()


@pytest.fixture
def raw(redis_cluster: RedisClusterServer) -> Iterator[redis.RedisCluster]:
    made = redis.RedisCluster.from_url(redis_cluster.node_url, protocol=2)
    yield made
    made.close()


@pytest.mark.spec("CM-006.3", "CM-006.4")
async def test_retries_delays_jobs_and_dead_letters_follow_a_slot_that_moves(
    redis_cluster: RedisClusterServer, client: redis.asyncio.RedisCluster, raw: redis.RedisCluster
) -> None:
    settings = ProcessorSettings(job_ttl_s=60, retention=None, settle_backoff=Backoff(base_s=0.02, cap_s=0.2))
    processor = Processor(client, STREAMS, concurrency=8, settings=settings)
    done: Counter[str] = Counter()

    @processor.handler("sell", retry=RetryPolicy.fixed(0.05, max_attempts=3))
    async def sell(ctx: JobContext) -> None:
        if ctx.data["n"] % 3 == 2 or (ctx.data["n"] % 3 == 1 and ctx.attempt == 1):
            raise LookupError
        done[ctx.id] += 1

    async with processor:
        for number in range(24):
            stream = STREAMS[number % 4]
            delay_s = 0.2 if number % 2 else None
            await processor.emit("sell", {"n": number}, id=f"id-{number}", stream=stream, delay_s=delay_s)
            if number in {8, 16}:
                await asyncio.to_thread(redis_cluster.move_slot, STREAMS[number // 8])
        await asyncio.to_thread(redis_cluster.switch_master, STREAMS[0])
        await wait_until_async(lambda: len(done) == 16)
        await wait_until_async(lambda: sum(raw.xlen(keys_of(stream).dead) for stream in STREAMS) == 8)
        states = {
            number: job.state
            for number in range(24)
            if (job := await processor.jobs.get(STREAMS[number % 4], f"id-{number}")) is not None
        }
        report = await processor.dead_letters(STREAMS[2]).replay(DeadFilter())
        await wait_until_async(lambda: raw.xpending(STREAMS[2], "processor")["pending"] == 0)

    assert len({slot_of(stream) for stream in STREAMS}) == 4
    assert set(done.values()) == {1}
    assert {number: state is JobState.DEAD for number, state in states.items()} == {n: n % 3 == 2 for n in range(24)}
    assert report.replayed == 2


async def test_a_paused_stream_and_event_stay_paused_over_a_fail_over(
    redis_cluster: RedisClusterServer, client: redis.asyncio.RedisCluster, raw: redis.RedisCluster
) -> None:
    processor = Processor(client, STREAMS[:2], settings=ProcessorSettings(retention=None))
    done: list[str] = []

    @processor.handler("sell")
    async def sell(ctx: JobContext) -> None:
        done.append(ctx.id)

    async with processor:
        await processor.pause(STREAMS[0])
        await processor.pause(STREAMS[1], event="sell")
        # The engine learns of it by its next poll; a read that waits until then may still bring a message.
        await wait_until_async(lambda: not _is_read(processor, STREAMS[0]))
        await wait_until_async(lambda: processor._pauses.is_event_paused(STREAMS[1], "sell"))
        await processor.emit("sell", id="one", stream=STREAMS[0])
        await processor.emit("sell", id="two", stream=STREAMS[1])
        await wait_until_async(lambda: raw.llen(keys_of(STREAMS[1]).parked_event("sell")) == 1)
        await asyncio.to_thread(redis_cluster.move_slot, STREAMS[0])
        assert done == []
        await processor.resume(STREAMS[0])
        await processor.resume(STREAMS[1], event="sell")
        await wait_until_async(lambda: sorted(done) == ["one", "two"])


def _is_read(processor: Any, stream: str) -> bool:
    return any(stream in shard.fetcher._streams for shard in processor._engine._shards)


async def test_two_schedulers_fire_each_tick_once_while_the_slot_moves(
    redis_cluster: RedisClusterServer, client: redis.asyncio.RedisCluster, raw: redis.RedisCluster
) -> None:
    # A step on several keys waits while its slot is on two nodes: "all" fires the ticks that are late by then.
    entries = [
        ScheduleEntry("beat", Every(1), "beat", STREAMS[0], catch_up="all"),
        ScheduleEntry("other", Every(1), "o", STREAMS[1], catch_up="all"),
    ]
    hosts = [Scheduler(client, entries, group="hosts") for _ in range(2)]
    tasks = [asyncio.create_task(host.start()) for host in hosts]

    def fired(stream: str) -> list[str]:
        entries: Any = raw.xrange(stream)
        return [json.loads(fields[b"data"])["id"] for _, fields in entries]

    await wait_until_async(lambda: len(fired(STREAMS[0])) >= 1)
    steps = redis_cluster.moving_slot(STREAMS[0])
    assert await asyncio.to_thread(next, steps) == "opened"
    await asyncio.to_thread(next, steps)
    seen = len(fired(STREAMS[1]))
    await wait_until_async(lambda: len(fired(STREAMS[1])) > seen)  # a tick is due while the slot is on two nodes
    await asyncio.to_thread(list, steps)
    await wait_until_async(lambda: all(len(fired(stream)) >= 4 for stream in STREAMS[:2]))
    for host in hosts:
        host.stop()
    await asyncio.gather(*tasks)
    for host in hosts:
        await host.close()

    for stream in STREAMS[:2]:
        ids = fired(stream)
        ticks = [int(one.rsplit("@", 1)[1]) for one in ids]
        assert len(set(ids)) == len(ids)
        assert ticks == list(range(ticks[0], ticks[-1] + 1, 1_000))


def test_sync_doors_and_targets_send_to_the_right_node(
    redis_cluster: RedisClusterServer, raw: redis.RedisCluster
) -> None:
    with SyncEmitter(raw, STREAMS[0]) as emitter:
        for stream in STREAMS:
            emitter.emit("sell", {"n": 1}, stream=stream)
            emitter.emit("sell", {"n": 2}, stream=stream, id="same")
            emitter.emit("sell", {"n": 2}, stream=stream, id="same")
    targets = [ToStream(raw, STREAMS[0]), ToProcessor(raw, STREAMS[1], event="sell")]
    for target in targets:
        target.close()

    assert [raw.xlen(stream) for stream in STREAMS] == [2] * 4


def test_a_stream_is_trimmed_on_the_node_that_it_moved_to(
    redis_cluster: RedisClusterServer, raw: redis.RedisCluster
) -> None:
    with QueueConsumer(raw, QueueConfig("orders", "billing", "alice", block_ms=50)) as consumer:
        consumer.queue.enqueue_many([{"n": number} for number in range(250)])
        for message in consumer.queue.read(50, 250):
            consumer.ack(message)
        redis_cluster.move_slot("orders")
        with StreamHousekeeper(raw, ["orders"], retention=Retention(keep_s=0.0, interval_s=0.05)):
            wait_until(lambda: raw.xlen("orders") <= 100)  # up to a node of the stream stays


async def test_an_app_has_its_effect_once_and_emits_on_a_cluster(
    redis_cluster: RedisClusterServer, tmp_path: Path, raw: redis.RedisCluster
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    METADATA.create_all(engine)
    app = App("shop", redis=redis_cluster.url, database=url, settings=AppSettings(relay_poll_s=0.02))
    app.create_tables()

    @app.handler("sell")
    def sell(data: dict[str, Any], session: Session) -> None:
        session.execute(insert(SALES).values(id=data["id"]))

    async with app:
        for number in range(10):
            await app.emit("sell", {"id": str(number)})
            if number == 5:
                await asyncio.to_thread(redis_cluster.move_slot, app.assembly.stream)
        with Session(engine) as session:
            app.emit_sync("sell", {"id": "from the outbox"}, session=session)
            session.commit()
        await wait_until_async(lambda: _count(engine) == 11)
    engine.dispose()

    assert raw.xpending(app.assembly.stream, app.assembly.group)["pending"] == 0


def _count(engine: Any) -> int:
    with engine.connect() as connection:
        return len(connection.execute(select(SALES.c.id)).all())


def test_management_and_commands_see_all_nodes(redis_cluster: RedisClusterServer, raw: redis.RedisCluster) -> None:
    for stream in STREAMS:
        raw.xadd(stream, {"data": "{}"})
    with RedisAdmin.from_url(redis_cluster.url) as server:
        found = list_streams(server)
    runner = CliRunner()

    def run(*words: str) -> Any:
        result = runner.invoke(command, [*words, "--redis-url", redis_cluster.url, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    assert sorted(stream.key for stream in found.streams) == STREAMS
    assert found.complete
    assert sorted(one["key"] for one in run("inspect")["streams"]) == STREAMS
    assert run("enqueue", STREAMS[3], '{"n": 1}')["enqueued"] == 1
