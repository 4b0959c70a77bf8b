"""The run's own broker, killed and brought back by these tests: a second one would take seconds to start."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pika
import pytest

from conquiet.rabbitmq_api import RabbitApiError
from conquiet.testing import ExternalRabbitMQ, RabbitMQServer, ServerStartError, wait_until
from conquiet.testing.shared import SharedRabbitMQ


@pytest.fixture(scope="module")
def module_broker(rabbitmq_server: SharedRabbitMQ) -> Iterator[RabbitMQServer]:
    if isinstance(rabbitmq_server, RabbitMQServer):
        yield rabbitmq_server
    else:  # given by URL, so not ours to kill
        with RabbitMQServer() as server:
            yield server


@pytest.fixture
def broker(module_broker: RabbitMQServer) -> RabbitMQServer:
    module_broker.ensure_running()
    return module_broker


def connect(url: str) -> pika.BlockingConnection:
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.blocked_connection_timeout = 30
    parameters.stack_timeout = 60
    return pika.BlockingConnection(parameters)


def test_a_durable_message_survives_a_kill(broker: RabbitMQServer) -> None:
    url, pid = broker.url, broker.pid
    with connect(url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
        channel.basic_publish("", "kept", b"hello", persistent)
    # RabbitMQ 3 confirms a declaration before Mnesia's log is on disk; this test is about kill and restart only.
    broker.ctl("eval", "mnesia:sync_log().")

    broker.kill()
    assert not broker.is_running
    broker.restart()

    assert broker.url == url
    assert broker.pid != pid
    with connect(url) as connection:
        _, _, body = connection.channel().basic_get("kept", auto_ack=True)
        assert body == b"hello"


def test_a_paused_broker_continues_where_it_stopped(broker: RabbitMQServer) -> None:
    with connect(broker.url) as connection:
        broker.pause()
        assert not broker.is_running

        broker.resume()

        assert connection.channel().queue_declare("", exclusive=True).method.message_count == 0


def test_a_vhost_is_isolated_and_can_be_deleted_with_open_connections(broker: RabbitMQServer) -> None:
    url = broker.create_vhost("a/b c")
    assert urlsplit(url).path == "/a%2Fb%20c"
    with connect(url) as connection:
        connection.channel().queue_declare("only-here")
        assert [queue["name"] for queue in broker.api("GET", "/api/queues/a%2Fb%20c")] == ["only-here"]

        broker.delete_vhost("a/b c")
        broker.delete_vhost("a/b c")

        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(time_limit=60)
    assert "a/b c" not in [vhost["name"] for vhost in broker.api("GET", "/api/vhosts")]


def test_the_broker_reports_tag_and_prefetch_of_each_consumer(broker: RabbitMQServer) -> None:
    with connect(broker.url) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_qos(prefetch_count=7)
        channel.basic_consume(queue, lambda *_: None, consumer_tag="me")

        consumers = wait_until(lambda: broker.api("GET", "/api/consumers/%2F"), message="the consumer")

    assert [(consumer["consumer_tag"], consumer["prefetch_count"]) for consumer in consumers] == [("me", 7)]


def test_rabbitmqctl_reaches_this_node_and_its_failures_are_raised(broker: RabbitMQServer) -> None:
    assert broker.ctl("eval", "node().").strip().strip("'") == broker.node
    with pytest.raises(ServerStartError, match="no_such_command"):
        broker.ctl("no_such_command")


def test_a_refusal_of_the_management_api_is_raised(broker: RabbitMQServer) -> None:
    with pytest.raises(RabbitApiError, match="GET /api/queues/nowhere: 404"):
        broker.api("GET", "/api/queues/nowhere")


def test_a_broker_given_by_url_needs_its_management_address_for_vhosts(
    broker: RabbitMQServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONQUIET_TEST_RABBIT_MANAGEMENT_URL", raising=False)
    plain = ExternalRabbitMQ(broker.url)
    assert plain.version == broker.version
    assert plain.create_vhost("one") == broker.url
    plain.delete_vhost("one")

    monkeypatch.setenv("CONQUIET_TEST_RABBIT_MANAGEMENT_URL", broker.management_url)
    managed = ExternalRabbitMQ(broker.url)
    with connect(managed.create_vhost("one")):
        pass
    managed.delete_vhost("one")
    assert "one" not in [vhost["name"] for vhost in broker.api("GET", "/api/vhosts")]


def test_the_shared_broker_gives_each_test_its_own_vhost(amqp_url: str) -> None:
    assert urlsplit(amqp_url).path.startswith("/test-")
    with connect(amqp_url) as connection:
        assert connection.channel().queue_declare("orders").method.message_count == 0
