"""A replay returns the dead message unchanged, and it can be dead-lettered again without being lost."""

import asyncio
import logging
import struct
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote, urlsplit

import pika
import pytest
from tests.integration.rabbit.conftest import Rabbit, Recorder

from conquiet.errors import ConfigurationError, PublishError, ReturnedMessageError
from conquiet.rabbit import (
    DeliveryFilter,
    Publisher,
    RabbitConsumer,
    RabbitDeadLetters,
    ReplayReport,
    SchemaRegistry,
    current_delivery,
)
from conquiet.rabbit.connection import Link
from conquiet.rabbit.dead_delivery import EVERYTHING
from conquiet.testing import wait_until_async


def bound_by_key(rabbit: Rabbit) -> None:
    """Make a queue ``work`` that gets ``order.#`` and dead-letters under the key of the message, to ``dead``."""
    channel = rabbit.channel
    channel.exchange_declare("events", "topic")
    channel.exchange_declare("dlx", "topic")
    channel.queue_declare("work", arguments={"x-dead-letter-exchange": "dlx"})
    channel.queue_bind("work", "events", "order.#")
    channel.queue_declare("dead")
    channel.queue_bind("dead", "dlx", "order.#")


def die(rabbit: Rabbit, queue: str = "work") -> Any:
    """Reject the first message of a queue, and return its AMQP properties."""
    method, _, _ = rabbit.channel.basic_get(queue)
    rabbit.channel.basic_reject(method.delivery_tag, requeue=False)
    return method


def exchanges(rabbit: Rabbit) -> list[str]:
    names = [one["name"] for one in rabbit.api("GET", "/api/exchanges/{vhost}")]
    return [name for name in names if name.startswith("conquiet.")]


async def test_a_replayed_message_that_fails_is_dead_lettered_by_its_original_key(rabbit: Rabbit) -> None:
    bound_by_key(rabbit)
    for key in ("order.created", "order.paid"):
        rabbit.channel.basic_publish("events", key, key.encode())
        die(rabbit)
    rabbit.wait_for_depth("dead", 2)

    assert await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING) == ReplayReport(2, 2)
    assert [die(rabbit).routing_key for _ in range(2)] == ["order.created", "order.paid"]

    rabbit.wait_for_depth("dead", 2)
    assert exchanges(rabbit) == []


async def test_a_replay_that_fails_leaves_no_exchange(rabbit: Rabbit) -> None:
    bound_by_key(rabbit)
    rabbit.channel.basic_publish("events", "order.created", b"1")
    die(rabbit)
    rabbit.wait_for_depth("dead", 1)
    rabbit.channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    origin = {"x-death": [{"queue": "full", "routing-keys": ["order.full"]}]}
    rabbit.put("dead", b"2", headers=origin)

    with pytest.raises(PublishError, match="refused"):
        await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING)

    assert exchanges(rabbit) == []
    assert rabbit.depth("work") == 1
    rabbit.wait_for_depth("dead", 1)


async def test_a_replay_into_a_missing_queue_loses_nothing(rabbit: Rabbit) -> None:
    rabbit.queue()
    rabbit.put("dead", b"1", headers={"x-death": [{"queue": "gone", "routing-keys": ["order.created"]}]})

    with pytest.raises(PublishError, match="no queue is bound for gone"):
        await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING)

    assert exchanges(rabbit) == []
    rabbit.wait_for_depth("dead", 1)


async def test_without_the_right_to_declare_exchanges_a_replay_warns(
    rabbit: Rabbit, caplog: pytest.LogCaptureFixture
) -> None:
    bound_by_key(rabbit)
    for _ in range(2):
        rabbit.channel.basic_publish("events", "order.created", b"1")
        die(rabbit)
    rabbit.wait_for_depth("dead", 2)
    user = f"reader-{rabbit.vhost}"
    rabbit.api("PUT", f"/api/users/{quote(user, safe='')}", {"password": "p", "tags": ""})
    rights = {"configure": "^$", "write": ".*", "read": ".*"}
    rabbit.api("PUT", f"/api/permissions/{{vhost}}/{quote(user, safe='')}", rights)
    parts = urlsplit(rabbit.url)
    url = parts._replace(netloc=f"{quote(user, safe='')}:p@{parts.hostname}:{parts.port}").geturl()

    try:
        with caplog.at_level(logging.WARNING, logger="conquiet.rabbit.dead_letters"):
            done = await RabbitDeadLetters(url, "dead").replay(EVERYTHING)
    finally:
        rabbit.api("DELETE", f"/api/users/{quote(user, safe='')}")

    assert done == ReplayReport(2, 2, rekeyed=2)
    assert [
        record.message.split(",")[0].partition(" [")[0] for record in caplog.records if "routing key" in record.message
    ] == ["messages are replayed under another routing key than their own"]
    assert rabbit.depth("work") == 2
    assert exchanges(rabbit) == []


async def test_a_replay_goes_to_no_queue_but_its_own(rabbit: Rabbit) -> None:
    # Without a key for dead letters: with one the broker itself removes the header.
    rabbit.channel.exchange_declare("dlx", "fanout")
    queue = rabbit.queue(dead=None, x_dead_letter_exchange="dlx")
    for name in ("other", "dead"):
        rabbit.channel.queue_declare(name)
    rabbit.channel.queue_bind("dead", "dlx")
    rabbit.put(queue, b"1", headers={"CC": ["other"], "mine": 1})
    rabbit.wait_for_depth("other", 1)
    die(rabbit)
    rabbit.wait_for_depth("dead", 1)

    assert await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING) == ReplayReport(1, 1)

    assert rabbit.depth("other") == 1
    assert rabbit.take(queue) == [({"mine": 1}, b"1")]


# ------------------------------------------------------------------ what a release costs
OLD = {"x-death": [{"queue": "old", "count": 1}]}
FROM_OLD = DeliveryFilter(source="old")


async def test_a_selection_is_refused_where_it_could_drop_messages(rabbit: Rabbit) -> None:
    rabbit.queue("back")
    queue = rabbit.queue("counting", quorum=True, dead=None, x_delivery_limit=1)
    rabbit.put(queue, b"1", headers=OLD)
    rabbit.put(queue, b"2")

    for _ in range(3):  # each would bring them nearer to their end, which is after two
        with pytest.raises(ConfigurationError, match="nothing was taken"):
            await RabbitDeadLetters(rabbit.url, queue).replay(DeliveryFilter(source="elsewhere"), to="back")
        rabbit.wait_for_depth(queue, 2)

    allowed = await RabbitDeadLetters(rabbit.url, queue, count_a_delivery=True).replay(FROM_OLD, to="back")
    assert allowed == ReplayReport(1, 1)
    rabbit.wait_for_depth(queue, 1)
    headers = {"x-delivery-count": 1} if rabbit.counts_nacks else {"x-acquired-count": 1}
    assert rabbit.take(queue) == [(headers, b"2")]


async def test_a_selection_on_a_classic_queue_is_free(rabbit: Rabbit) -> None:
    rabbit.queue("back")
    rabbit.put("dead", b"1")
    rabbit.put("dead", b"2", headers=OLD)

    done = await RabbitDeadLetters(rabbit.url, "dead").replay(FROM_OLD, to="back")

    assert done == ReplayReport(1, 1)
    assert [body for _, body in rabbit.take("back")] == [b"2"]
    rabbit.wait_for_depth("dead", 1)


async def test_a_replay_stops_at_a_message_it_has_returned_before(rabbit: Rabbit) -> None:
    queue = rabbit.queue("counting", quorum=True, dead=None, x_delivery_limit=2)
    rabbit.put(queue, b"no source")
    counted = (
        pytest.raises(ConfigurationError, match="peeking once more may delete it")
        if rabbit.counts_nacks
        else nullcontext()
    )

    assert await RabbitDeadLetters(rabbit.url, queue).replay(EVERYTHING) == ReplayReport(1, 0, unreplayable=1)
    rabbit.wait_for_depth(queue, 1)
    with counted:
        await RabbitDeadLetters(rabbit.url, queue).replay(EVERYTHING)
    rabbit.wait_for_depth(queue, 1)
    if rabbit.counts_nacks:  # the stop was the second time, and this is the last
        allowed = RabbitDeadLetters(rabbit.url, queue, count_a_delivery=True)
        assert await allowed.replay(EVERYTHING) == ReplayReport(1, 0, unreplayable=1)
        rabbit.wait_for_depth(queue, 0)
    else:
        for _ in range(3):
            assert await RabbitDeadLetters(rabbit.url, queue).replay(EVERYTHING) == ReplayReport(1, 0, unreplayable=1)
            rabbit.wait_for_depth(queue, 1)


async def test_a_failing_replay_drops_nothing_beyond_its_delivery_limit(rabbit: Rabbit) -> None:
    """From RabbitMQ 4.3 on it is beyond that limit in its dead-letter queue too, and a nack would drop it."""
    dead = rabbit.queue("failed", quorum=True, dead=None, x_delivery_limit=1)
    queue = rabbit.queue(quorum=True, dead=dead, x_delivery_limit=1)
    rabbit.put(queue, b"1", headers={"mine": 1})
    for _ in range(2):
        await wait_until_async(lambda: rabbit.depth(queue) == 1)
        rabbit.channel.basic_reject(rabbit.channel.basic_get(queue)[0].delivery_tag, requeue=True)
    rabbit.wait_for_depth(dead, 1)
    rabbit.channel.queue_delete(queue)

    with pytest.raises(PublishError, match="no queue is bound for work"):
        await RabbitDeadLetters(rabbit.url, dead).replay(EVERYTHING)
    rabbit.wait_for_depth(dead, 1)
    rabbit.queue(queue)

    assert await RabbitDeadLetters(rabbit.url, dead).replay(EVERYTHING) == ReplayReport(1, 1)
    assert rabbit.depth(dead) == 0
    assert rabbit.take(queue) == [({"mine": 1}, b"1")]


async def test_a_replay_that_is_cancelled_at_its_end_keeps_no_message(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbit.queue()
    rabbit.put("dead", b"no source")
    ending = asyncio.Event()

    async def hangs(_: Publisher) -> None:
        ending.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Publisher, "close", hangs)
    running = asyncio.create_task(RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING))
    await ending.wait()
    assert rabbit.depth("dead") == 0

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    rabbit.wait_for_depth("dead", 1)


# ------------------------------------------------------------------ headers that only others write
class Raw:
    """A value of a header, as its bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


MILLISECONDS = Raw(b"T" + struct.pack(">Q", 1_700_000_000_000))


@pytest.fixture
def odd(rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch) -> Rabbit:
    """The broker's view, with a client that writes values which pika otherwise cannot."""
    encode = pika.data.encode_value

    def encode_raw(pieces: list[bytes], value: Any) -> int:
        if isinstance(value, Raw):
            pieces.append(value.raw)
            return len(value.raw)
        size: int = encode(pieces, value)
        return size

    monkeypatch.setattr(pika.data, "encode_value", encode_raw)
    return rabbit


async def test_a_replay_brings_every_header_back_as_it_was(odd: Rabbit) -> None:
    queue = odd.queue()
    origin = {"x-death": [{"count": 1, "queue": queue}]}
    price = Raw(b"d" + struct.pack(">d", 2.75))
    counts = {"x-delivery-count": 2, "x-acquired-count": 3}
    # In alphabetical order, which RabbitMQ 4 makes automatically.
    odd.put("dead", b"1", headers={"price": price, "small": Raw(b"b\x07"), "when": MILLISECONDS, **counts, **origin})
    odd.put("dead", b"behind it", headers=origin)

    assert await RabbitDeadLetters(odd.url, "dead").replay(EVERYTHING) == ReplayReport(2, 2)

    link = await Link.open(RabbitDeadLetters(odd.url, "dead")._address)
    fetched = await link.fetch(queue)
    await link.close()
    assert fetched is not None
    assert fetched.headers == {"when": None, "price": 2.75, "small": 7}
    table = fetched.properties.part("headers")
    assert table is not None
    assert table[4:] == b"\x05price" + price.raw + b"\x05smallb\x07" + b"\x04when" + MILLISECONDS.raw


async def test_a_message_that_comes_back_to_the_publisher_may_have_any_header(odd: Rabbit) -> None:
    odd.queue()
    odd.put("dead", b"1", headers={"when": MILLISECONDS})

    with pytest.raises(ReturnedMessageError):
        await RabbitDeadLetters(odd.url, "dead").replay(EVERYTHING, to="nowhere")


async def test_a_retry_circuit_ends_also_for_a_message_with_an_odd_header(
    odd: Rabbit, recorder: type[Recorder]
) -> None:
    odd.queue("wait", dead="work", x_message_ttl=20)
    odd.queue("work", dead="wait")
    odd.put("work", b"{}", headers={"when": MILLISECONDS})
    syncer = recorder(*[False] * 100)
    schemas = SchemaRegistry(built_in=False).register_default()

    async with RabbitConsumer(odd.url, "work", syncer, schemas=schemas, max_retries=2, exhausted="drop") as consumer:
        await wait_until_async(lambda: consumer.count.dropped == 1 or len(syncer.seen) > 10)

    assert (len(syncer.seen), consumer.count.dropped) == (6, 1)  # three rounds, each with a second try


async def test_the_message_id_is_kept_with_an_odd_header(odd: Rabbit) -> None:
    odd.queue()
    properties = pika.BasicProperties(headers={"when": MILLISECONDS}, message_id="m1")
    odd.channel.basic_publish("", "work", b"{}", properties)
    seen: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def syncer(_: dict[str, Any]) -> bool:
        seen.set_result((current_delivery().message_id, current_delivery().headers))
        return True

    schemas = SchemaRegistry(built_in=False).register_default()
    async with RabbitConsumer(odd.url, "work", syncer, schemas=schemas):
        assert await asyncio.wait_for(seen, 60) == ("m1", {"when": None})


async def test_listing_returns_all_messages_of_a_quorum_queue_in_order(rabbit: Rabbit) -> None:
    """Messages returned by the end of the channel would be in another order on each member, and lost with a leader.

    See ``test_a_rabbitmq_cluster_loses_nothing``, which peeks and then replays while the leader dies.
    """
    queue, sent = rabbit.queue("dead-orders", quorum=True, dead=None), [str(number).encode() for number in range(200)]
    for one in sent:
        rabbit.put(queue, one)
    dead_letters = RabbitDeadLetters(rabbit.url, queue, count_a_delivery=True)

    seen, depth = [one.body for one in await dead_letters.list()], rabbit.depth(queue)

    assert seen == sent
    assert depth == len(sent)
    assert [body for _, body in rabbit.take(queue)] == sent


async def test_listing_ends_although_another_consumer_takes_what_it_returns(
    rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conquiet.rabbit.taken_messages._RELEASE_WAIT_S", 0.1)
    queue, sent = rabbit.queue("dead-orders", quorum=True, dead=None), set(range(100))
    for number in sent:
        rabbit.put(queue, {"number": number})
    dead_letters = RabbitDeadLetters(rabbit.url, queue, count_a_delivery=True)
    taken: set[int] = set()

    async def take(message: dict[str, Any]) -> bool:
        taken.add(message["number"])
        return True

    schemas = SchemaRegistry(built_in=False).register_default()
    listing = asyncio.create_task(dead_letters.list())
    async with RabbitConsumer(rabbit.url, queue, take, schemas=schemas):
        await listing
        await wait_until_async(lambda: taken == sent)
