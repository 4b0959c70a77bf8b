"""The engine on both event loops."""

import asyncio
from collections.abc import Awaitable, Callable

import redis
import redis.asyncio
from tests.integration.runtime.conftest import Enqueue, Pending
from tests.redis_clients import RawRedis

from conquiet.runtime import Consumer, MessageContext, RuntimeMessage

Run = Callable[[Callable[[], Awaitable[None]]], None]


def test_an_engine_works_on_either_loop(
    on_loop: Run, redis_url: str, stream: str, enqueue: Enqueue, pending: Pending
) -> None:
    enqueue(500)
    seen: list[str] = []

    async def body() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:

            async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
                seen.append(message.id)
                if len(seen) == 500:
                    engine.stop()

            engine = Consumer(streams=[stream], redis=client, handler=handler, concurrency=10)
            report = await engine.start()
            assert report.succeeded == 500

    on_loop(body)

    assert len(set(seen)) == 500
    assert pending() == []


def test_immediately_finished_messages_are_acknowledged_with_the_next_read(
    on_loop: Run, redis_url: str, stream: str, enqueue: Enqueue, raw: RawRedis
) -> None:
    """Only the reader's connection is used, and only the write of the read: this keeps latency low."""

    async def body() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            done = asyncio.Event()

            async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
                done.set()

            async with Consumer(streams=[stream], redis=client, handler=handler, concurrency=10):
                with raw.monitor() as monitor:
                    for _ in range(5):
                        done.clear()
                        enqueue(1)
                        await done.wait()
                    commands: list[tuple[str, str]] = []
                    while sum(name == "XACK" for name, _ in commands) < 5:
                        reported = await asyncio.to_thread(monitor.next_command)
                        commands.append((reported["command"].split()[0], reported["client_port"]))
        readers = {port for name, port in commands if name == "XREADGROUP"}
        assert {port for name, port in commands if name == "XACK"} == readers

    on_loop(body)
