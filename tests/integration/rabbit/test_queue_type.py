"""Queues that count deliveries, and the counts that are trusted."""

from typing import Any

import pytest
from tests.integration.rabbit.conftest import Rabbit, Recorder

from conquiet.rabbit import RabbitConsumer, RabbitDeadLetters, SchemaRegistry
from conquiet.rabbit.connection import Link
from conquiet.rabbit.queue_probe import has_delivery_limit, queue_type
from conquiet.testing import wait_until_async


@pytest.mark.parametrize("quorum", [False, True])
async def test_the_queue_type_is_learned_without_taking_a_message(rabbit: Rabbit, *, quorum: bool) -> None:
    queue = rabbit.queue(quorum=quorum)
    rabbit.put(queue, b"1")
    link = await Link.open(RabbitDeadLetters(rabbit.url, "dead")._address)

    try:
        for _ in range(2):
            assert await queue_type(link, queue) == ("quorum" if quorum else "classic")
        assert await queue_type(link, "nowhere") is None
        assert await has_delivery_limit(link, queue) is quorum
        assert await link.depth(queue) == 1  # the link itself is none the worse for it
    finally:
        await link.close()
    assert rabbit.channel.basic_get(queue)[0].redelivered is False


@pytest.mark.spec("MW-005.3")
@pytest.mark.parametrize("count", [{"x-delivery-count": 1}, {"x-acquired-count": 1}])
async def test_a_foreign_count_on_a_classic_queue_causes_no_endless_requeue(
    rabbit: Rabbit, recorder: type[Recorder], fast: dict[str, Any], caplog: pytest.LogCaptureFixture, count: Any
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, b"{}", headers=count)
    syncer = recorder(*[False] * 50)
    options: Any = {"settle": "delivery_count", "max_requeues": 2, **fast}
    schemas = SchemaRegistry(built_in=False).register_default()

    async with RabbitConsumer(rabbit.url, queue, syncer, schemas=schemas, **options) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered or consumer.count.ack)

    assert (len(syncer.seen), consumer.count.dead_lettered) == (2, 1)
    assert [record.message for record in caplog.records if "does not count deliveries" in record.message]
    rabbit.wait_for_depth("dead", 1)
