"""Wait for results of a stream with partitions: any partition, with and without asyncio, also through a growth."""

import asyncio
from typing import Any

import pytest
import redis.asyncio
from tests.redis_clients import RawAsyncRedis

from conquiet.errors import ConfigurationError, JobCancelledError, JobFailedError, JobTimeoutError
from conquiet.processor import (
    JobContext,
    NewMessage,
    PartitionedEmitter,
    PartitionedProcessor,
    PartitionedStream,
    ProcessorSettings,
    Reject,
    RetryPolicy,
    SyncPartitionedEmitter,
)
from conquiet.processor.keys import keys_of
from conquiet.processor.partitions import partition_name, partition_of
from conquiet.testing import wait_until_async

PARTITIONS = 5


@pytest.fixture
def stream(key_prefix: str) -> str:
    return f"{key_prefix}prices"


@pytest.fixture
def processor(client: RawAsyncRedis, stream: str) -> PartitionedProcessor:
    settings = ProcessorSettings(refresh_s=0.1)
    processor = PartitionedProcessor(client, stream, partitions=PARTITIONS, concurrency=8, settings=settings)

    @processor.handler("add", retry=RetryPolicy.fixed(0.02, max_attempts=3))
    async def add(ctx: JobContext) -> dict[str, Any]:
        if ctx.attempt < ctx.data.get("fails", 0) + 1:
            raise LookupError
        await ctx.progress(0.5, "adding")
        return {"sum": ctx.data["a"] + 1, "stream": ctx.delivery.message.stream}

    @processor.handler("dies")
    async def dies(ctx: JobContext) -> None:
        raise Reject("no such item")

    return processor


async def test_results_come_from_every_partition(
    processor: PartitionedProcessor, client: RawAsyncRedis, stream: str
) -> None:
    async with processor:
        found = [await processor.emit_and_wait("add", {"a": n}, timeout_s=60) for n in range(PARTITIONS)]
        keyed = await processor.emit_and_wait("add", {"a": 1, "fails": 2}, key="k", id="m", timeout_s=60)
        again = await processor.emit_and_wait("add", {"a": 9}, key="k", id="m", timeout_s=60)
        later = await PartitionedEmitter(client, stream).job("m").result(timeout_s=60)
        reported = await processor.job("m").progress()
        with pytest.raises(JobFailedError, match="Reject"):
            await processor.emit_and_wait("dies", timeout_s=60)

    names = {partition_name(stream, index) for index in range(PARTITIONS)}
    assert [one["sum"] for one in found] == [1, 2, 3, 4, 5]
    assert {one["stream"] for one in found} == names
    assert keyed == again == later == {"sum": 2, "stream": partition_name(stream, partition_of("k", PARTITIONS))}
    assert reported is not None
    assert reported.text == "adding"


async def test_threads_wait_for_results_of_partitions(
    processor: PartitionedProcessor, redis_url: str, stream: str
) -> None:
    def ask() -> tuple[Any, Any, Any]:
        with (
            redis.Redis.from_url(redis_url) as own,
            SyncPartitionedEmitter(own, stream) as emitter,
        ):
            first = emitter.emit_and_wait("add", {"a": 1, "fails": 1}, id="m", timeout_s=60)
            second = emitter.emit_and_wait("add", {"a": 2}, key="k", timeout_s=60)
            with pytest.raises(JobFailedError):
                emitter.emit_and_wait("dies", timeout_s=60)
            with pytest.raises(JobTimeoutError):
                emitter.job("never emitted").result(timeout_s=0)
            assert emitter.job("m").progress() is not None
            return first, second, emitter.job("m").result(timeout_s=60)

    async with processor:
        first, second, again = await asyncio.to_thread(ask)

    assert (first["sum"], second["sum"]) == (2, 3)
    assert again == first


async def test_a_result_is_found_though_a_growth_moved_the_job(client: RawAsyncRedis, stream: str) -> None:
    """The retry of a message that yields its turn follows its key to the new partition."""
    key = next(f"k{n}" for n in range(1_000) if partition_of(f"k{n}", 2) != partition_of(f"k{n}", 8))
    streams: list[str] = []
    grown = asyncio.Event()
    policy = RetryPolicy(max_attempts=50, backoff=RetryPolicy.fixed(0.2, max_attempts=2).backoff, yields_turn=True)
    processor = PartitionedProcessor(client, stream, partitions=2, settings=ProcessorSettings(refresh_s=0.1))

    @processor.handler("add", retry=policy)
    async def add(ctx: JobContext) -> str:
        streams.append(ctx.delivery.message.stream)
        if not grown.is_set() or streams[-1] == streams[0]:
            raise LookupError
        return "done"

    async with processor:
        waiting = asyncio.create_task(processor.emit_and_wait("add", {"a": 1}, key=key, timeout_s=60))
        await wait_until_async(lambda: streams)
        await PartitionedStream(client, stream).grow(8)
        grown.set()
        assert await waiting == "done"

    assert streams[-1] == partition_name(stream, partition_of(key, 8)) != streams[0]


async def test_a_cancelled_job_of_a_partition_ends_the_wait(client: RawAsyncRedis, stream: str) -> None:
    emitter = PartitionedEmitter(client, stream)
    await PartitionedStream(client, stream).grow(PARTITIONS)
    job = await emitter.emit_job(NewMessage("add", key="k", id="m", keep_result_s=60))
    place = partition_name(stream, partition_of("k", PARTITIONS))
    await client.hset(keys_of(place).cancelled("m"), "state", "cancelled")

    for one in (job, emitter.job("m")):
        with pytest.raises(JobCancelledError):
            await one.result(timeout_s=60)
    with pytest.raises(ConfigurationError):
        emitter.job("")
