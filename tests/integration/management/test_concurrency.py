"""``conquiet worker --concurrency`` takes effect on a worker of any kind that is already built."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pika
import pytest
from redis.asyncio import Redis

from conquiet.errors import LifecycleError
from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer
from conquiet.runtime import Consumer

TOGETHER = 3
ACTION = {"schema": "proca:action:2", "actionId": 1, "contact": {}, "action": {}, "campaign": {}, "org": {}}


class Meeting:
    """Handlers that wait for each other: they meet only if all run concurrently."""

    def __init__(self) -> None:
        self._barrier = asyncio.Barrier(TOGETHER)
        self.took_place = asyncio.Event()

    async def attend(self, *_: Any) -> bool:
        await self._barrier.wait()
        self.took_place.set()
        return True


async def held(meeting: Meeting, worker: Any, run: Callable[[], Awaitable[object]]) -> None:
    """Run the worker until the meeting took place; it can be changed before, and not while it runs."""
    worker.set_concurrency(TOGETHER)
    running = asyncio.ensure_future(run())
    try:
        await asyncio.wait_for(meeting.took_place.wait(), 60)
        with pytest.raises(LifecycleError, match="before"):
            worker.set_concurrency(1)
    finally:
        worker.stop()
        await running


async def test_a_consumer_takes_it(redis_url: str, key_prefix: str) -> None:
    client, meeting, stream = Redis.from_url(redis_url), Meeting(), f"{key_prefix}orders"
    for _ in range(TOGETHER):
        await client.xadd(stream, {"data": "{}"})
    consumer = Consumer(streams=[stream], redis=client, handler=meeting.attend, block_ms=100)

    await held(meeting, consumer, consumer.start)

    assert (await client.xpending(stream, "processor"))["pending"] == 0
    await client.aclose()


async def test_a_processor_takes_it(redis_url: str, key_prefix: str) -> None:
    client, meeting = Redis.from_url(redis_url), Meeting()
    processor = Processor(client, [f"{key_prefix}events"])
    processor.handler("met")(meeting.attend)
    for _ in range(TOGETHER):
        await processor.emit("met", {})

    await held(meeting, processor, processor.start)

    await processor.close()
    await client.aclose()


async def test_a_rabbit_consumer_takes_it(amqp_url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("meetings")
        for _ in range(TOGETHER):
            channel.basic_publish("", "meetings", json.dumps(ACTION).encode())
    meeting = Meeting()
    consumer = RabbitConsumer(amqp_url, "meetings", meeting.attend)

    await held(meeting, consumer, consumer.run)
