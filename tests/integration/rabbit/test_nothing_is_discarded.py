"""A generic consumer on an ordinary durable queue: messages that it gives up are in ``<queue>.dead``, for a replay."""

import json
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
from tests.integration.rabbit.conftest import MakeAction, Rabbit, Recorder

from conquiet.errors import FatalSyncerError, RabbitError
from conquiet.rabbit import DeliveryCause, RabbitConsumer, RabbitDeadLetters
from conquiet.rabbit.dead_delivery import EVERYTHING
from conquiet.rabbit.settings import seed_defaults
from conquiet.testing import wait_until_async
from conquiet.testing.rabbitmq import RabbitMQServer

pytestmark = pytest.mark.usefixtures("rabbitmq_server")


@pytest.mark.spec("MW-005.3", "MW-008.2", "MW-008.3")
@pytest.mark.parametrize("quorum", [False, True])
async def test_orders_of_pika_are_handled_and_failed_ones_are_kept(
    rabbit: Rabbit, recorder: type[Recorder], *, quorum: bool
) -> None:
    queue = rabbit.queue("orders", dead=None, quorum=quorum)
    rabbit.put(queue, *({"order": number} for number in range(20)))
    seen: list[int] = []

    async def syncer(message: dict[str, Any]) -> bool:
        seen.append(message["order"])
        return bool(message["order"] % 5)

    async with RabbitConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 16 and consumer.count.dead_lettered == 4)

    assert set(seen) == set(range(20))
    assert len(seen) == 24  # each refused one had two attempts
    kept = rabbit.take("orders.dead")
    assert sorted(json.loads(body)["order"] for _, body in kept) == [0, 5, 10, 15]
    assert {headers["x-conquiet-reason"] for headers, _ in kept} == {"refused"}
    assert rabbit.depth(queue) == 0
    # A moved message is acknowledged at the broker, and was not processed.
    assert (consumer.count.ack, consumer.count.nack, consumer.count.dropped) == (16, 8, 0)


async def test_a_moved_message_keeps_its_properties_and_says_why_and_whence(
    rabbit: Rabbit, recorder: type[Recorder]
) -> None:
    queue = rabbit.queue("orders", dead=None)
    properties = pika.BasicProperties(
        message_id="m-1", correlation_id="c-1", content_type="text/x", headers={"own": 7, "CC": []}, expiration="600000"
    )
    rabbit.channel.basic_publish("", queue, b"not json", properties)

    async with RabbitConsumer(rabbit.url, queue, recorder()) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    method, kept, body = rabbit.channel.basic_get("orders.dead", auto_ack=True)
    assert method is not None
    assert body == b"not json"
    assert (kept.message_id, kept.correlation_id, kept.content_type) == ("m-1", "c-1", "text/x")
    assert (kept.delivery_mode, kept.expiration) == (2, None)
    assert kept.headers.pop("x-conquiet-dead-at").startswith("20")
    assert kept.headers == {
        "own": 7,
        "x-conquiet-queue": "orders",
        "x-conquiet-reason": "body is not JSON",
        "x-conquiet-error": "",
        "x-conquiet-deaths": 1,
    }
    assert rabbit.api("GET", "/api/queues/{vhost}/orders.dead")["durable"] is True


async def test_a_moved_message_is_listed_replayed_and_handled(
    rabbit: Rabbit, recorder: type[Recorder], rabbitmq_server: RabbitMQServer
) -> None:
    queue = rabbit.queue("orders", dead=None)
    rabbit.put(queue, {"order": 1}, headers={"x-death": [{"queue": "elsewhere", "count": 1}]})
    async with RabbitConsumer(rabbit.url, queue, recorder(False, False)) as consumer:  # noqa: FBT003
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    dead_letters = RabbitDeadLetters(rabbit.url, "orders.dead", management_url=rabbitmq_server.management_url)

    [listed] = await dead_letters.list()
    causes = await dead_letters.causes()
    replayed = await dead_letters.replay(EVERYTHING)
    syncer = recorder()
    async with RabbitConsumer(rabbit.url, queue, syncer) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 1)

    assert (listed.source, listed.reason, listed.count) == ("orders", "refused", 1)
    assert listed.deaths[0]["queue"] == "orders"
    assert causes == [DeliveryCause("orders", "refused", 1)]
    assert (replayed.replayed, replayed.unreplayable) == (1, 0)
    assert syncer.seen == [{"order": 1}]
    assert rabbit.depth("orders.dead") == 0


async def test_a_publisher_cannot_choose_where_a_replay_leads(rabbit: Rabbit, recorder: type[Recorder]) -> None:
    """The header is believed only in the queue that belongs to it."""
    rabbit.queue("other", dead=None)
    queue = rabbit.queue()
    rabbit.put(queue, {"order": 1}, headers={"x-conquiet-queue": "other"})
    async with RabbitConsumer(rabbit.url, queue, recorder(False, False)) as consumer:  # noqa: FBT003
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)
    rabbit.wait_for_depth("dead", 1)

    await RabbitDeadLetters(rabbit.url, "dead").replay(EVERYTHING)

    assert (rabbit.depth(queue), rabbit.depth("other")) == (1, 0)


@pytest.mark.parametrize("arguments", [{}, {"x_message_ttl": 600_000, "x_expires": 600_000}])
async def test_a_queue_declared_with_an_exchange_dead_letters_by_itself(
    rabbit: Rabbit, recorder: type[Recorder], arguments: dict[str, Any]
) -> None:
    queue = rabbit.queue(**arguments)
    rabbit.put(queue, {"order": 1})

    async with RabbitConsumer(rabbit.url, queue, recorder(False, False)) as consumer:  # noqa: FBT003
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    rabbit.wait_for_depth("dead", 1)
    [(headers, _)] = rabbit.take("dead")
    assert "x-conquiet-queue" not in headers


async def test_an_exchange_that_does_not_exist_is_none(rabbit: Rabbit, recorder: type[Recorder]) -> None:
    rabbit.channel.queue_declare("orders", durable=True, arguments={"x-dead-letter-exchange": "nowhere"})
    rabbit.put("orders", {"order": 1})

    async with RabbitConsumer(rabbit.url, "orders", recorder(False, False)) as consumer:  # noqa: FBT003
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert rabbit.depth("orders.dead") == 1


@pytest.mark.parametrize("quorum", [False, True])
async def test_dead_letters_to_a_queue_that_does_not_exist_are_moved(
    rabbit: Rabbit, recorder: type[Recorder], *, quorum: bool
) -> None:
    """The default exchange discards them: by AMQP the routing key is known as well as the exchange."""
    queue = rabbit.queue("orders", dead="nosuch", quorum=quorum)
    rabbit.put(queue, {"order": 1})

    async with RabbitConsumer(rabbit.url, queue, recorder(False, False)) as consumer:  # noqa: FBT003
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert [json.loads(body) for _, body in rabbit.take("orders.dead")] == [{"order": 1}]


@pytest.mark.parametrize("by_policy", [False, True])
@pytest.mark.parametrize("exchange", ["unbound", "nowhere", ""])
async def test_the_management_api_shows_an_exchange_that_leads_nowhere(
    rabbit: Rabbit,
    recorder: type[Recorder],
    rabbitmq_server: RabbitMQServer,
    caplog: pytest.LogCaptureFixture,
    exchange: str,
    *,
    by_policy: bool,
) -> None:
    rabbit.channel.exchange_declare("unbound", "fanout", durable=True)
    settings = {"dead-letter-exchange": exchange, "dead-letter-routing-key": "nosuch"}
    if by_policy:
        rabbit.channel.queue_declare("orders", durable=True)
        rabbit.api("PUT", "/api/policies/{vhost}/dead", {"pattern": "^orders$", "definition": settings})
        await wait_until_async(
            lambda: rabbit.api("GET", "/api/queues/{vhost}/orders").get("effective_policy_definition")
        )
    else:
        rabbit.channel.queue_declare("orders", durable=True, arguments={f"x-{key}": settings[key] for key in settings})
    rabbit.put("orders", {"order": 1})
    url = rabbitmq_server.management_url
    syncer = recorder(False, False)  # noqa: FBT003

    async with RabbitConsumer(rabbit.url, "orders", syncer, management_url=url) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert [json.loads(body) for _, body in rabbit.take("orders.dead")] == [{"order": 1}]
    assert "the dead-letter exchange of the queue leads to no queue" in caplog.text


@pytest.mark.parametrize("asks_the_api", [False, True])
async def test_an_exchange_with_a_binding_dead_letters_by_itself(
    rabbit: Rabbit, recorder: type[Recorder], rabbitmq_server: RabbitMQServer, *, asks_the_api: bool
) -> None:
    rabbit.channel.exchange_declare("bound", "fanout", durable=True)
    rabbit.channel.queue_declare("graves", durable=True)
    rabbit.channel.queue_bind("graves", "bound")
    rabbit.channel.queue_declare("orders", durable=True, arguments={"x-dead-letter-exchange": "bound"})
    rabbit.put("orders", {"order": 1})
    url = rabbitmq_server.management_url if asks_the_api else None
    syncer = recorder(False, False)  # noqa: FBT003

    async with RabbitConsumer(rabbit.url, "orders", syncer, management_url=url) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    rabbit.wait_for_depth("graves", 1)
    assert "x-conquiet-queue" not in rabbit.take("graves")[0][0]


@pytest.mark.spec("MW-002.4", "MW-008.2", "MW-008.3")
async def test_a_message_past_the_retry_limit_is_kept(rabbit: Rabbit, recorder: type[Recorder]) -> None:
    queue = rabbit.queue()  # even if the queue dead-letters: there it might circulate
    rabbit.put(queue, {"order": 1}, headers={"x-death": [{"queue": queue, "count": 9}]})
    syncer = recorder()

    async with RabbitConsumer(rabbit.url, queue, syncer, max_retries=5) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert syncer.seen == []
    assert (consumer.count.ack, consumer.count.nack) == (0, 1)
    [(headers, _)] = rabbit.take("work.dead")
    assert headers["x-conquiet-reason"] == "retry limit"


async def test_discard_is_said_and_warned_about(
    rabbit: Rabbit, recorder: type[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    queue = rabbit.queue("orders", dead=None)
    rabbit.put(queue, b"not json")

    async with RabbitConsumer(rabbit.url, queue, recorder(), without_dead_letters="discard") as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert any("will be discarded" in message for message in caplog.messages)
    assert rabbit.api("GET", "/api/queues/{vhost}")[0]["name"] == "orders"
    assert len(rabbit.api("GET", "/api/queues/{vhost}")) == 1


@pytest.mark.spec("MW-005.3")
async def test_the_seed_rejects_and_warns_at_its_start(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, caplog: pytest.LogCaptureFixture
) -> None:
    queue = rabbit.queue("orders", dead=None)
    rabbit.put(queue, action(1))

    async with RabbitConsumer(rabbit.url, queue, recorder(False, False), **seed_defaults()) as consumer:  # noqa: FBT003
        assert any("will be discarded" in message for message in caplog.messages)
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    assert rabbit.depth(queue) == 0


async def test_without_the_right_to_declare_the_consumer_stops_and_keeps_the_message(
    rabbit: Rabbit, recorder: type[Recorder], rabbitmq_server: RabbitMQServer
) -> None:
    queue = rabbit.queue("orders", dead=None)
    rabbit.put(queue, {"order": 1})
    rabbit.api("PUT", "/api/users/narrow", {"password": "narrow", "tags": ""})
    rights = {"configure": "^orders$", "write": ".*", "read": ".*"}
    rabbit.api("PUT", "/api/permissions/{vhost}/narrow", rights)
    parts = urlsplit(rabbit.url)
    url = parts._replace(netloc=f"narrow:narrow@{parts.hostname}:{parts.port}").geturl()

    with pytest.raises(RabbitError, match="dead-letter exchange") as raised:
        await RabbitConsumer(url, queue, recorder(False, False)).run()  # noqa: FBT003

    assert "orders.dead cannot be used: this user may not create it" in str(raised.value)
    rabbit.wait_for_depth(queue, 1)


@pytest.mark.spec("MW-006.1", "MW-007.4")
async def test_a_poisoned_message_is_moved_before_the_consumer_ends(
    rabbit: Rabbit, recorder: type[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    queue = rabbit.queue("orders", dead=None)
    rabbit.put(queue, {"order": 1})

    for _ in range(2):
        with pytest.raises(FatalSyncerError):
            await RabbitConsumer(rabbit.url, queue, recorder(ValueError("x")), poison_guard=True).run()

    [(headers, _)] = rabbit.take("orders.dead")
    assert headers["x-conquiet-error"] == "ValueError"
    assert rabbit.depth(queue) == 0
    assert sum(message.startswith("fatal error, the consumer stops") for message in caplog.messages) == 2


async def test_the_log_names_the_message_id_that_the_dead_letter_has(
    rabbit: Rabbit, recorder: type[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    queue = rabbit.queue("orders", dead=None)
    rabbit.put(queue, b"not json")  # without an id

    async with RabbitConsumer(rabbit.url, queue, recorder()) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    _, properties, _ = rabbit.channel.basic_get("orders.dead", auto_ack=True)
    [record] = [record for record in caplog.records if record.message.startswith("message moved")]
    facts = vars(record)
    assert facts["message_id"] == properties.message_id
    assert facts["delivery_tag"] == 2


async def test_a_dead_queue_that_was_deleted_meanwhile_is_declared_again(
    rabbit: Rabbit, recorder: type[Recorder], fast: dict[str, Any]
) -> None:
    queue = rabbit.queue("orders", dead=None)
    rabbit.put(queue, b"1")
    async with RabbitConsumer(rabbit.url, queue, recorder(), **fast) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)
        rabbit.channel.queue_delete("orders.dead")
        rabbit.put(queue, b"2")
        await wait_until_async(lambda: consumer.count.dead_lettered == 2)

    assert [body for _, body in rabbit.take("orders.dead")] == [b"2"]


async def test_a_replayed_message_says_nothing_of_its_last_end_but_how_often(
    rabbit: Rabbit, recorder: type[Recorder]
) -> None:
    queue = rabbit.queue("orders", dead=None)
    rabbit.put(queue, b"1")
    async with RabbitConsumer(rabbit.url, queue, recorder()) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered == 1)

    await RabbitDeadLetters(rabbit.url, "orders.dead").replay(EVERYTHING)

    assert rabbit.take(queue) == [({"x-conquiet-deaths": 1}, b"1")]
