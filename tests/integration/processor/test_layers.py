"""Engine and policy are separate: the engine leaves retries, delays and dead letters to other layers."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.processor import JobContext, Processor
from conquiet.processor.keys import Keys
from conquiet.redis_transport.liveness import registry_key
from conquiet.runtime import Consumer, MessageContext, RuntimeMessage
from conquiet.runtime.engine import Engine
from conquiet.testing import wait_until_async


@pytest.mark.spec("CM-002.1", "CM-002.2", "CM-002.3", "CM-002.4", "CM-002.5", "CM-002.6", "CM-002.7")
async def test_the_engine_alone_knows_no_policy(client: RawAsyncRedis, stream: str, keys: Keys, place: Place) -> None:
    """A delayed, a failing and a paused message: each is run once, and no other key is written."""
    later_ms = int(time.time() * 1000) + 600_000
    runs: list[str] = []
    await client.hset(keys.paused, "*", 1)
    for name in ("delayed", "failing"):
        payload = {"v": 1, "event": name, "id": name, "delay_until_ms": later_ms, "max_attempts": 3}
        await client.xadd(stream, {"data": json.dumps(payload)})

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        runs.append(message.data["event"])
        if message.data["event"] == "failing":
            raise ValueError

    async with Consumer(streams=[stream], redis=client, handler=handler, concurrency=2) as consumer:
        await wait_until_async(lambda: len(runs) == 2)
        await asyncio.sleep(0.3)
        await consumer.wait_for_active_tasks()

    assert sorted(runs) == ["delayed", "failing"]
    assert await place.pending() == 1
    assert await client.xlen(stream) == 2
    # The consumer's name is registered while an entry is pending under it; that is not the state of a message.
    registered = registry_key(stream, "processor").encode()
    assert set(await client.keys("*")) == {stream.encode(), keys.paused.encode(), registered}


@pytest.mark.spec("CM-006.1")
async def test_a_policy_layer_needs_only_the_message_and_ack(
    client: RawAsyncRedis, stream: str, keys: Keys, place: Place
) -> None:
    """The seed's own sketch of a processor, over the engine as it is: handler(message, ctx) and ctx.ack()."""
    done: list[str] = []

    async def handle(message: RuntimeMessage, ctx: MessageContext) -> None:
        try:
            if message.data["event"] != "good":
                raise ValueError
            done.append(message.id)
            await ctx.ack()
        except ValueError:
            if message.data["retries"] > 0:
                again = {**message.data, "retries": message.data["retries"] - 1}
                await client.xadd(stream, {"data": json.dumps(again)})
            else:
                await client.xadd(keys.dead, {"data": json.dumps(message.data)})
            await ctx.ack()

    for event in ("good", "bad"):
        await client.xadd(stream, {"data": json.dumps({"event": event, "retries": 2})})
    async with Consumer(streams=[stream], redis=client, handler=handle):
        await wait_until_async(lambda: _is(place.dead, 1))

    assert len(done) == 1
    assert await client.xlen(stream) == 4
    assert await place.pending() == 0


@pytest.mark.spec("CM-006.1")
async def test_the_processor_runs_on_the_engine_of_the_consumer(
    make_processor: Callable[..., Processor], client: RawAsyncRedis
) -> None:
    processor = make_processor()
    seen: list[Any] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append(ctx.data)

    engine, promoter = processor._assemble()
    assert type(engine) is Engine  # the class that Consumer gives a user's handler to
    async with engine:
        await processor.emit("pay", {"n": 1})
        await wait_until_async(lambda: seen == [{"n": 1}])
    await promoter.close()


async def _is(question: Any, answer: int) -> bool:
    return bool(await question() == answer)
