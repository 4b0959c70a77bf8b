"""The end of each part that opens its own connections: the server has none of them any more."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from conquiet.config import QueueConfig
from conquiet.processor import Processor, SyncEmitter
from conquiet.queue import QueueConsumer, RedisStreamsQueue, StreamProducer
from conquiet.runtime import Consumer
from conquiet.scheduler import Scheduler
from conquiet.testing import wait_until_async

Use = Callable[[redis.asyncio.Redis, redis.Redis, str], Awaitable[object]]


async def handle(*_: Any) -> None:
    return


async def use_runtime(client: redis.asyncio.Redis, _sync: redis.Redis, stream: str) -> object:
    async with Consumer(redis=client, streams=[stream], handler=handle) as engine:
        await client.xadd(stream, {"data": "{}"})
        await wait_until_async(lambda: engine.health().streams[stream].succeeded == 1)
    return engine


async def use_processor(client: redis.asyncio.Redis, _sync: redis.Redis, stream: str) -> object:
    processor = Processor(client, [stream])
    done = asyncio.Event()

    @processor.handler("pay")
    async def pay(_: Any) -> None:
        done.set()

    async with processor:
        await processor.emit("pay")
        await asyncio.wait_for(done.wait(), 60)
    return processor


async def use_scheduler(client: redis.asyncio.Redis, _sync: redis.Redis, _stream: str) -> object:
    async with Scheduler(client) as scheduler:
        pass
    return scheduler


async def use_sync_emitter(_client: redis.asyncio.Redis, sync: redis.Redis, stream: str) -> object:
    with SyncEmitter(sync, stream) as emitter:
        emitter.emit("pay")
    return emitter


async def use_queue(_client: redis.asyncio.Redis, sync: redis.Redis, stream: str) -> object:
    with RedisStreamsQueue(sync, QueueConfig(stream, "g", "a")) as queue:
        queue.enqueue({"n": 1})
        assert len(queue.read(5_000)) == 1  # a longer wait has a separate connection
    return queue


async def use_consumer(_client: redis.asyncio.Redis, sync: redis.Redis, stream: str) -> object:
    with QueueConsumer(sync, QueueConfig(stream, "g", "a")) as consumer:
        assert consumer.next(10) is None
    return consumer


async def use_producer(_client: redis.asyncio.Redis, sync: redis.Redis, stream: str) -> object:
    with StreamProducer(sync, stream) as producer:
        producer.enqueue({"n": 1})
    return producer


PARTS: dict[str, Use] = {
    "runtime.Consumer": use_runtime,
    "Processor": use_processor,
    "Scheduler": use_scheduler,
    "SyncEmitter": use_sync_emitter,
    "RedisStreamsQueue": use_queue,
    "QueueConsumer": use_consumer,
    "StreamProducer": use_producer,
}


@pytest.mark.spec("CQ-001.15")
@pytest.mark.parametrize("part", PARTS)
async def test_a_part_that_has_ended_leaves_no_connection_open(redis_url: str, key_prefix: str, part: str) -> None:
    name = key_prefix.rstrip(":")
    look = redis.asyncio.Redis.from_url(redis_url, protocol=2)
    client = redis.asyncio.Redis.from_url(redis_url, client_name=name)
    sync = redis.Redis.from_url(redis_url, client_name=name)

    async def open_connections() -> int:
        listed: Any = await look.client_list()
        return sum(one["name"] == name for one in listed)

    try:
        ended = await PARTS[part](client, sync, f"{key_prefix}s")
        await client.aclose()  # the caller's own, which the parts leave open
        sync.close()
        await wait_until_async(lambda: _is_none(open_connections), message="no connection of ours is left")
        del ended  # kept until here: the garbage collector would close its connections
    finally:
        await client.aclose()
        sync.close()
        await look.aclose()


async def _is_none(ask: Callable[[], Awaitable[int]]) -> bool:
    return await ask() == 0
