"""What comes back from a dead-letter queue is what died, and can die again without being lost."""

import logging
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from conquiet.errors import PublishError
from conquiet.rabbit import DeadLetters, Replayed


def bound_by_key(rabbit: Any) -> None:
    """Make a queue ``work`` that gets ``order.#`` and dead-letters under the key of the message, to ``dead``."""
    channel = rabbit.channel
    channel.exchange_declare("events", "topic")
    channel.exchange_declare("dlx", "topic")
    channel.queue_declare("work", arguments={"x-dead-letter-exchange": "dlx"})
    channel.queue_bind("work", "events", "order.#")
    channel.queue_declare("dead")
    channel.queue_bind("dead", "dlx", "order.#")


def die(rabbit: Any, queue: str = "work") -> Any:
    """Reject the first message of a queue, and return what AMQP tells of it."""
    method, _, _ = rabbit.channel.basic_get(queue)
    rabbit.channel.basic_reject(method.delivery_tag, requeue=False)
    return method


def exchanges(rabbit: Any) -> list[str]:
    names = [one["name"] for one in rabbit.api("GET", "/api/exchanges/{vhost}")]
    return [name for name in names if name.startswith("conquiet.")]


async def test_a_replayed_message_that_fails_again_is_dead_lettered_by_its_original_key(rabbit: Any) -> None:
    bound_by_key(rabbit)
    for key in ("order.created", "order.paid"):
        rabbit.channel.basic_publish("events", key, key.encode())
        die(rabbit)
    rabbit.wait_for_depth("dead", 2)

    assert await DeadLetters(rabbit.url).replay("dead") == Replayed(2, 0)
    assert [die(rabbit).routing_key for _ in range(2)] == ["order.created", "order.paid"]

    rabbit.wait_for_depth("dead", 2)
    assert exchanges(rabbit) == []


async def test_a_replay_that_fails_leaves_no_exchange(rabbit: Any) -> None:
    bound_by_key(rabbit)
    rabbit.channel.basic_publish("events", "order.created", b"1")
    die(rabbit)
    rabbit.wait_for_depth("dead", 1)
    rabbit.channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    origin = {"x-death": [{"queue": "full", "routing-keys": ["order.full"]}]}
    rabbit.put("dead", b"2", headers=origin)

    with pytest.raises(PublishError, match="refused"):
        await DeadLetters(rabbit.url).replay("dead")

    assert exchanges(rabbit) == []
    assert rabbit.depth("work") == 1
    rabbit.wait_for_depth("dead", 1)


async def test_a_replay_into_a_queue_that_is_gone_loses_nothing_and_leaves_no_exchange(rabbit: Any) -> None:
    rabbit.queue()
    rabbit.put("dead", b"1", headers={"x-death": [{"queue": "gone", "routing-keys": ["order.created"]}]})

    with pytest.raises(PublishError, match="no queue is bound for gone"):
        await DeadLetters(rabbit.url).replay("dead")

    assert exchanges(rabbit) == []
    rabbit.wait_for_depth("dead", 1)


async def test_who_may_not_make_exchanges_replays_as_before_and_is_warned(
    rabbit: Any, caplog: pytest.LogCaptureFixture
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
            done = await DeadLetters(url).replay("dead")
    finally:
        rabbit.api("DELETE", f"/api/users/{quote(user, safe='')}")

    assert done == Replayed(2, 0, rekeyed=2)
    assert [record.message.split(",")[0] for record in caplog.records if "routing key" in record.message] == [
        "messages are replayed under another routing key than their own"
    ]
    assert rabbit.depth("work") == 2
    assert exchanges(rabbit) == []


async def test_a_replay_goes_to_no_queue_but_its_own(rabbit: Any) -> None:
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

    assert await DeadLetters(rabbit.url).replay("dead") == Replayed(1, 0)

    assert rabbit.depth("other") == 1
    assert rabbit.take(queue) == [({"mine": 1}, b"1")]
