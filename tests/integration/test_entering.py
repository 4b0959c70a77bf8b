"""``async with`` that is cancelled while it enters: no ``__aexit__`` follows, so nothing may be left to work later."""

import asyncio
from typing import Any

import pytest
import redis.asyncio
from tests.tcp_servers import serving

from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer
from conquiet.runtime import Consumer
from conquiet.scheduler import Scheduler


async def never_reply(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(1_000):
        pass


async def handle(*_: Any) -> bool:
    return True


def processor(client: redis.asyncio.Redis) -> Processor:
    made = Processor(client, ["s"])
    made.handler("pay")(handle)
    return made


@pytest.mark.parametrize("package", ["runtime", "processor", "scheduler", "rabbit"])
async def test_a_timeout_while_entering_leaves_nothing_running(package: str) -> None:
    async with serving(never_reply) as port:
        client = redis.asyncio.Redis(host="127.0.0.1", port=port, socket_timeout=2, socket_connect_timeout=2)
        made: dict[str, Any] = {
            "runtime": lambda: Consumer(redis=client, streams=["s"], group="g", handler=handle),
            "processor": lambda: processor(client),
            "scheduler": lambda: Scheduler(client),
            "rabbit": lambda: RabbitConsumer(f"amqp://127.0.0.1:{port}", "q", handle),
        }
        before = asyncio.all_tasks()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), made[package]():
                raise AssertionError("it cannot have begun")

        assert asyncio.all_tasks() - before == set()
        await client.aclose()
