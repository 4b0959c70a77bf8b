"""Confirmed publishing and the way back out of a dead-letter queue."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.rabbit.conftest import MakeAction, Rabbit, Recorder

from conquiet.errors import ConfigurationError, PublishError, QueueMissingError, ReturnedMessageError
from conquiet.rabbit import Outgoing, Publisher, RabbitConsumer, RabbitDeadLetters, ReplayReport
from conquiet.rabbit.dead_delivery import EVERYTHING
from conquiet.testing import wait_until_async
from conquiet.testing.proxy import FaultProxy


async def test_a_published_message_is_in_the_queue_persistent_and_with_an_id(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    async with Publisher(rabbit.url) as publisher:
        message_id = await publisher.publish(queue, {"a": 1}, headers={"mine": 2})

    method, properties, body = rabbit.channel.basic_get(queue, auto_ack=True)
    assert json.loads(body) == {"a": 1}
    assert (properties.delivery_mode, properties.message_id) == (2, message_id)
    assert (properties.content_type, properties.headers) == ("application/json", {"mine": 2})
    assert method.redelivered is False


@pytest.mark.parametrize("body", [{"a": 1}, b'{"a": 1}'])
async def test_a_message_has_the_content_type_that_is_asked_for(rabbit: Rabbit, body: Any) -> None:
    """The Node original cannot handle ``application/json``."""
    queue = rabbit.queue()
    async with Publisher(rabbit.url) as publisher:
        await publisher.publish(queue, body, content_type="text/plain")
        await publisher.send(Outgoing(queue, body, content_type="text/plain"))

    for _ in range(2):
        _, properties, taken = rabbit.channel.basic_get(queue, auto_ack=True)
        assert (properties.content_type, json.loads(taken)) == ("text/plain", {"a": 1})


async def test_a_message_that_no_queue_wants_raises(rabbit: Rabbit) -> None:
    async with Publisher(rabbit.url) as publisher:
        with pytest.raises(ReturnedMessageError, match="no queue is bound for nowhere") as caught:
            await publisher.publish("nowhere", b"secret")
        assert caught.value.queue == "nowhere"

        queue = rabbit.queue()
        await publisher.publish(queue, b"x")  # the channel is still good


async def test_a_channel_is_renewed_after_a_refusal_unless_it_is_new(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel may be refused permanently: the leader of its quorum queue died when the channel was opened."""
    full, free = rabbit.queue("full", x_max_length=0, x_overflow="reject-publish"), rabbit.queue()
    async with Publisher(rabbit.url) as publisher:
        with pytest.raises(PublishError, match="refused"):
            await publisher.publish(full, {})
        monkeypatch.setattr("conquiet.rabbit.confirms._RENEW_S", 3_600.0)
        refused_on = await publisher._open()
        await publisher.publish(free, {})
        assert await publisher._open() is refused_on

        monkeypatch.setattr("conquiet.rabbit.confirms._RENEW_S", 0.0)
        await publisher.publish(free, {})

        renewed = await publisher._open()
        assert renewed is not refused_on
        assert not refused_on.link.is_open
        await publisher.publish(free, {})
        assert await publisher._open() is renewed
    rabbit.wait_for_depth(free, 3)


async def test_many_are_all_confirmed(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    progress: list[int] = []
    async with Publisher(rabbit.url, window=50) as publisher:
        count = await publisher.publish_many(
            (Outgoing(queue, {"number": number}) for number in range(500)), on_progress=progress.append
        )

    assert count == rabbit.depth(queue) == progress[-1] == 500
    assert progress == sorted(progress)


async def test_a_source_that_fails_leaves_those_before_it_confirmed(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    progress: list[int] = []

    def source() -> Iterator[Outgoing]:
        for number in range(3):
            yield Outgoing(queue, {"number": number})
        raise LookupError("line 4")

    async with Publisher(rabbit.url) as publisher:
        with pytest.raises(LookupError, match="line 4"):
            await publisher.publish_many(source(), on_progress=progress.append)

    assert progress == [rabbit.depth(queue)] == [3]


async def test_in_a_batch_only_the_one_that_was_returned_fails(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    async with Publisher(rabbit.url) as publisher:
        messages = [Outgoing(queue, b"1"), Outgoing("nowhere", b"2", message_id="same"), Outgoing(queue, b"3")]
        with pytest.raises(ReturnedMessageError) as caught:
            await publisher.publish_many(messages)

    assert caught.value.message_id == "same"
    assert [body for _, body in rabbit.take(queue)] == [b"1", b"3"]


async def test_a_full_queue_refuses_and_that_raises(rabbit: Rabbit) -> None:
    queue = rabbit.queue(x_max_length=1, x_overflow="reject-publish")
    async with Publisher(rabbit.url) as publisher:
        await publisher.publish(queue, b"1")
        with pytest.raises(PublishError, match="refused"):
            await publisher.publish(queue, b"2")


async def test_a_lost_connection_raises_and_the_next_call_connects_again(
    rabbit: Rabbit, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    queue = rabbit.queue()
    proxy = fault_proxy(rabbit.url)
    async with Publisher(proxy.url_for(rabbit.url), timeout_s=10) as publisher:
        await publisher.publish(queue, b"1")
        proxy.drop_next_reply(after_request_matching=b"the second")
        with pytest.raises(PublishError, match="may still be in the queue"):
            await publisher.publish(queue, b"the second")
        await publisher.publish(queue, b"3")

    assert [body for _, body in rabbit.take(queue)] == [b"1", b"the second", b"3"]


async def test_a_broker_that_never_confirms_is_a_timeout(
    rabbit: Rabbit, fault_proxy: Callable[[str], FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rabbit.queue()
    proxy = fault_proxy(rabbit.url)
    publisher = Publisher(proxy.url_for(rabbit.url), timeout_s=30)
    await publisher.publish(queue, b"1")
    proxy.stall()
    monkeypatch.setattr(publisher, "_timeout_s", 0.5)  # now, and not for the connection
    with pytest.raises(PublishError, match="did not confirm"):
        await publisher.publish(queue, b"2")
    proxy.resume()
    await publisher.close()


async def test_a_body_that_is_not_json_is_refused_before_anything_is_sent(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    async with Publisher(rabbit.url) as publisher:
        with pytest.raises(ConfigurationError) as caught:
            await publisher.publish(queue, {"email": ["jane@example.org", object()]})

    assert "email[1]" in str(caught.value)
    assert "jane" not in str(caught.value)
    assert rabbit.depth(queue) == 0


async def test_concurrent_publishers_share_one_connection(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    async with Publisher(rabbit.url) as publisher:
        await asyncio.gather(*[publisher.publish(queue, {"number": number}) for number in range(50)])

    assert rabbit.depth(queue) == 50


async def test_dead_letters_return_to_their_queue_with_fresh_counts(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction
) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *[action(number) for number in range(3)], headers={"mine": 1})
    async with RabbitConsumer(rabbit.url, queue, recorder(*[False] * 6)) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 3)
    rabbit.wait_for_depth("dead", 3)  # the broker moves what was rejected in its own time
    reports: list[ReplayReport] = []

    done = await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING, on_progress=reports.append)

    assert done == ReplayReport(3, 3)
    assert [(one.matched, one.replayed) for one in reports] == [(1, 1), (2, 2), (3, 3)]
    assert rabbit.depth("dead") == 0
    back = rabbit.take(queue)
    assert sorted(json.loads(body)["actionId"] for _, body in back) == [0, 1, 2]
    assert [headers for headers, _ in back] == [{"mine": 1}] * 3


async def test_a_replay_is_limited_paced_and_leaves_what_has_no_origin(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    origin = {"x-death": [{"count": 1, "queue": queue, "reason": "rejected"}]}
    rabbit.put("dead", b"no origin")
    rabbit.put("dead", *[b"%d" % number for number in range(5)], headers=origin)

    began = time.monotonic()
    done = await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING, limit=4, rate_per_s=20)

    assert done == ReplayReport(4, 3, unreplayable=1)
    assert time.monotonic() - began >= 2 / 20
    assert rabbit.depth(queue) == 3
    rabbit.wait_for_depth("dead", 3)
    assert b"no origin" in [body for _, body in rabbit.take("dead")]


async def test_a_replay_can_be_sent_elsewhere(rabbit: Rabbit) -> None:
    rabbit.queue("other")
    rabbit.put("dead", b"1")

    assert await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING, to="other") == ReplayReport(1, 1)
    assert rabbit.depth("other") == 1


async def test_a_replay_that_cannot_be_put_back_loses_nothing(rabbit: Rabbit) -> None:
    rabbit.queue()
    rabbit.put("dead", b"1")

    with pytest.raises(ReturnedMessageError):
        await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING, to="nowhere")
    with pytest.raises(QueueMissingError):
        await RabbitDeadLetters(rabbit.url, "no-such-queue").replay(EVERYTHING)

    rabbit.wait_for_depth("dead", 1)


@pytest.mark.parametrize("options", [{"limit": 0}, {"rate_per_s": 0}, {"rate_per_s": -1}])
async def test_a_replay_checks_its_settings(rabbit: Rabbit, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING, **options)
