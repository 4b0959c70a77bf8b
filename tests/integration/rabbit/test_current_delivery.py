"""Facts about its delivery that a syncer can read, with an unchanged contract."""

import asyncio
from typing import Any

import pika
import pytest
from tests.integration.rabbit.conftest import Rabbit

from conquiet.core import causation
from conquiet.core.causation import MessageRef, read_cause
from conquiet.errors import LifecycleError
from conquiet.rabbit import Delivery, RabbitConsumer, current_delivery
from conquiet.testing import wait_until_async

pytestmark = pytest.mark.usefixtures("rabbitmq_server")


def publish(rabbit: Rabbit, queue: str, body: bytes, **properties: Any) -> None:
    rabbit.channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties), mandatory=True)


BODY = b'{"schema": "proca:event:2", "actionId": %d}'


async def test_a_coroutine_sees_its_own_message_id_also_in_tasks_it_starts(rabbit: Rabbit) -> None:
    """Many run concurrently on one loop, each waiting for the others: none may see the delivery of another."""
    queue, number = rabbit.queue(), 20
    for one in range(number):
        publish(rabbit, queue, BODY % one, message_id=f"id-{one}")
    seen: dict[int, tuple[str | None, str | None, str | None]] = {}
    all_in = asyncio.Barrier(number)

    async def ask() -> str | None:
        return current_delivery().message_id

    async def syncer(message: dict[str, Any]) -> bool:
        before = current_delivery().message_id
        await all_in.wait()
        in_thread = await asyncio.to_thread(lambda: current_delivery().message_id)
        seen[message["actionId"]] = (before, await asyncio.create_task(ask()), in_thread)
        return True

    async with RabbitConsumer(rabbit.url, queue, syncer, concurrency=number) as consumer:
        await wait_until_async(lambda: consumer.count.ack == number)

    assert seen == {one: (f"id-{one}",) * 3 for one in range(number)}


async def test_a_plain_function_sees_headers_flag_and_id_of_its_delivery(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    publish(rabbit, queue, BODY % 1, message_id="one", headers={"tenant": "a"})
    seen: list[tuple[str | None, Any, bool]] = []

    def syncer(_: dict[str, Any]) -> bool:
        delivery = current_delivery()
        seen.append((delivery.message_id, delivery.headers, delivery.redelivered))
        return len(seen) > 1

    async with RabbitConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 1)

    assert seen == [("one", {"tenant": "a"}, False), ("one", {"tenant": "a"}, True)]


async def test_bodies_of_several_frames_and_large_headers_arrive_whole_and_in_order(rabbit: Rabbit) -> None:
    """A frame holds 128 KiB: the first body takes four of them, the headers fill most of another."""
    queue = rabbit.queue()
    headers = {"note": "n" * 100_000, "list": [1, True, None, {"deep": [b"raw"]}]}
    publish(rabbit, queue, BODY[:-1] % 1 + b', "pad": "' + b"p" * 500_000 + b'"}', message_id="large", headers=headers)
    publish(rabbit, queue, b"")
    publish(rabbit, queue, BODY % 2, message_id="small")
    seen: list[tuple[str | None, int, Any]] = []

    async def syncer(message: dict[str, Any]) -> bool:
        delivery = current_delivery()
        seen.append((delivery.message_id, len(message.get("pad", "")), delivery.headers))
        return True

    async with RabbitConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 2 and consumer.count.dead_lettered == 1)

    assert seen == [("large", 500_000, headers), ("small", 0, None)]
    assert [body for _, body in rabbit.take("dead")] == [b""]


@pytest.mark.parametrize("given", [None, ""])
async def test_a_missing_or_empty_id_is_none(rabbit: Rabbit, given: str | None) -> None:
    queue = rabbit.queue()
    publish(rabbit, queue, BODY % 1, message_id=given)
    seen: list[Delivery] = []

    async def syncer(_: dict[str, Any]) -> bool:
        seen.append(current_delivery())
        return True

    async with RabbitConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 1)

    assert seen[0].message_id is None
    assert seen[0].headers is None


def test_outside_a_syncer_there_is_none() -> None:
    with pytest.raises(LifecycleError, match="inside a syncer"):
        current_delivery()


@pytest.mark.parametrize("kind", ["async", "plain", "batch"])
async def test_messages_emitted_by_a_syncer_name_its_delivery_as_the_cause(rabbit: Rabbit, kind: str) -> None:
    queue = rabbit.queue()
    publish(rabbit, queue, BODY % 1, message_id="one")
    publish(rabbit, queue, BODY % 2)
    named: dict[int, MessageRef | None] = {}

    def plain(message: dict[str, Any]) -> bool:
        named[message["actionId"]] = read_cause(causation.carried(None, "emails", "mail-1"))
        return True

    async def syncer(message: dict[str, Any]) -> bool:
        return await asyncio.to_thread(plain, message)

    async def batch(messages: list[Any]) -> bool:
        for message in messages:
            plain(message)
        return True

    options: dict[str, Any] = {"batch": 1} if kind == "batch" else {}
    chosen: Any = {"async": syncer, "plain": plain, "batch": batch}[kind]
    async with RabbitConsumer(rabbit.url, queue, chosen, **options) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 2)

    assert named == {1: MessageRef(queue, "one"), 2: None}  # the second has no id that could be named
