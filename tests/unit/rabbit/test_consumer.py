"""Ends of a consumer that need no broker."""

import asyncio
import inspect
import threading
from typing import Any

from tests.tcp_servers import serving

from conquiet.core.lifecycle import AsyncLifecycle, Status, Worker
from conquiet.rabbit import RabbitConsumer, RabbitSettings, sync_queue

NOWHERE = "amqp://127.0.0.1:1"


def never(_: Any) -> bool:
    raise AssertionError


async def test_one_that_was_stopped_before_its_start_is_closed_and_over() -> None:
    consumer = RabbitConsumer(NOWHERE, "q", never)
    consumer.stop()

    async with asyncio.timeout(60):
        await consumer.close()
        await consumer.close()
        await consumer.ready()


async def test_a_stop_between_two_steps_of_the_start_counts() -> None:
    """There is no event loop yet that it could wake: with a broker the consumer would never end."""
    consumer = RabbitConsumer(NOWHERE, "q", never)

    class Interrupted(AsyncLifecycle):
        def start(self) -> None:
            super().start()
            consumer.stop()

    consumer._life = Interrupted("this consumer")

    async with asyncio.timeout(60):
        assert (await consumer.run()).ack == 0
    assert consumer.status is Status.STOPPED


async def test_a_stop_while_the_broker_is_silent_ends_at_once() -> None:
    connected = asyncio.Event()

    async def silence(reader: Any, writer: Any) -> None:
        connected.set()
        await reader.read()

    async with serving(silence) as port:
        consumer = RabbitConsumer(f"amqp://127.0.0.1:{port}", "q", never, connect_timeout_s=600.0)
        running = asyncio.create_task(consumer.run())
        await connected.wait()

        async with asyncio.timeout(60):
            await consumer.close()
            assert consumer.status is Status.STOPPED
            count = await running

    assert count.ack == 0


async def test_a_stop_while_the_management_api_is_silent_ends_at_once() -> None:
    asked = asyncio.Event()
    before = set(threading.enumerate())

    async def silence(reader: Any, _: Any) -> None:
        asked.set()
        await reader.read()

    async with serving(silence) as port:
        consumer = RabbitConsumer(NOWHERE, "q", never, management_url=f"http://127.0.0.1:{port}")
        running = asyncio.create_task(consumer.run())
        await asked.wait()
        consumer.stop()

        async with asyncio.timeout(60):
            assert (await running).ack == 0
        asking = {thread.name for thread in set(threading.enumerate()) - before}
        assert "conquiet-rabbit-api" in asking, "the question, which may take 10 s, was waited for"
    for thread in set(threading.enumerate()) - before:
        if thread.name == "conquiet-rabbit-api":
            await asyncio.to_thread(thread.join, 30)


def test_health_never_raises_and_names_the_status() -> None:
    consumer = RabbitConsumer(NOWHERE, "q", never)
    assert (consumer.health().ready, consumer.health().reason) == (False, "not started")

    consumer.stop()
    assert (consumer.health().ready, consumer.health().reason) == (False, "stopped")
    assert isinstance(consumer, Worker)


def test_help_shows_every_setting_of_a_consumer() -> None:
    shown = inspect.signature(RabbitConsumer).parameters
    assert list(shown) == ["url", "queue", "syncer", *inspect.signature(RabbitSettings).parameters]
    assert inspect.signature(sync_queue).parameters["concurrency"].default == 1
