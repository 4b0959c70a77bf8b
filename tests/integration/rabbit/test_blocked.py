"""A broker that is low on memory blocks publishers. The alarm is a real one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.integration.rabbit.conftest import MakeAction, Rabbit

from conquiet.errors import PublishError
from conquiet.rabbit import Publisher, RabbitConsumer
from conquiet.testing import RabbitMQServer, wait_until_async
from conquiet.testing.shared import SharedRabbitMQ

USUAL = "0.4"
BLOCKED = "publishing blocked by the broker: it is low on memory or disk"


Alarm = Callable[[str], Awaitable[None]]


@pytest.fixture
def alarm(rabbitmq_server: SharedRabbitMQ) -> Iterator[Alarm]:
    """Set the memory limit to nothing, and back."""
    if not isinstance(rabbitmq_server, RabbitMQServer):
        pytest.fail("this test has to change the broker's memory limit: run it on a private one")

    now = USUAL

    async def limit(share: str) -> None:
        nonlocal now
        now = share
        await asyncio.to_thread(rabbitmq_server.ctl, "set_vm_memory_high_watermark", share)

    yield limit
    if now != USUAL:
        rabbitmq_server.ctl("set_vm_memory_high_watermark", USUAL)


async def test_a_blocking_broker_delays_publishers_and_no_consumer(
    rabbit: Rabbit, action: MakeAction, alarm: Alarm, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, answers = rabbit.queue(), asyncio.Event()
    rabbit.queue("other", dead=None)
    rabbit.put(queue, *[action(number) for number in range(20)])

    async def syncer(message: dict[str, Any]) -> bool:
        await answers.wait()
        return bool(message["actionId"] != 7)

    caplog.set_level(logging.INFO, logger="conquiet.rabbit.publisher")
    async with (
        RabbitConsumer(rabbit.url, queue, syncer) as consumer,
        Publisher(rabbit.url, timeout_s=300) as publisher,
        Publisher(rabbit.url, timeout_s=300) as impatient,
    ):
        await publisher.publish("other", {"n": 0})
        assert not publisher.is_blocked
        await alarm("0")
        try:
            waiting = asyncio.create_task(publisher.publish("other", {"n": 1}))
            await wait_until_async(lambda: publisher.is_blocked, message="the broker says that it blocks")
            answers.set()
            await wait_until_async(lambda: consumer.count.ack == 19, message="everything is settled meanwhile")
            await wait_until_async(lambda: consumer.count.dead_lettered == 1)
            late = asyncio.create_task(impatient.publish("other", {"n": 2}))
            await wait_until_async(lambda: impatient.is_blocked, message="the broker notifies the other one too")
            monkeypatch.setattr(impatient, "_timeout_s", 0.1)
            with pytest.raises(PublishError, match="blocks publishers") as caught:
                await impatient.publish("other", {"n": 3})
            assert caught.value.reason == "blocked"
            assert not waiting.done()
            assert not late.done()
        finally:
            await alarm(USUAL)  # a blocked connection cannot be closed in order
        await asyncio.wait_for(asyncio.gather(waiting, late), 60)
        await wait_until_async(lambda: not publisher.is_blocked)

    assert consumer.count.reconnects == 0
    said = [
        record.message.partition(" [")[0] for record in caplog.records if record.name == "conquiet.rabbit.publisher"
    ]
    assert said[:2] == [BLOCKED, BLOCKED]  # each of the two for itself
    assert "publishing unblocked by the broker" in said
