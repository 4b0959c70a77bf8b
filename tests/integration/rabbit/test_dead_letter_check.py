"""Does the queue keep what fails? Found out from the management API."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.rabbit.conftest import MakeAction, Rabbit, Recorder

from conquiet.errors import RabbitConnectionError, RabbitError
from conquiet.rabbit import RabbitConsumer
from conquiet.testing import RabbitMQServer, free_port, wait_until_async
from conquiet.testing.certificates import Certificate, make_certificate

WARNING = "the queue has no dead-letter exchange: a message that fails twice will be discarded"


@pytest.fixture
def management_url(rabbitmq_server: RabbitMQServer) -> str:
    return str(rabbitmq_server.management_url)


async def start_and_stop(consumer: RabbitConsumer) -> None:
    async with consumer:
        pass


@pytest.mark.parametrize(("dead", "warned"), [("dead", False), (None, True)])
async def test_a_queue_without_a_dead_letter_exchange_is_warned_about(
    rabbit: Rabbit,
    recorder: type[Recorder],
    management_url: str,
    caplog: pytest.LogCaptureFixture,
    dead: str | None,
    *,
    warned: bool,
) -> None:
    queue = rabbit.queue(dead=dead)

    await start_and_stop(
        RabbitConsumer(rabbit.url, queue, recorder(), management_url=management_url, without_dead_letters="discard")
    )

    assert (WARNING in caplog.text) is warned


async def test_a_policy_counts_as_well(rabbit: Rabbit, recorder: type[Recorder], management_url: str) -> None:
    queue = rabbit.queue(dead=None)
    rabbit.channel.exchange_declare("dlx", "fanout", durable=True)
    rabbit.channel.queue_declare("dead", durable=True)
    rabbit.channel.queue_bind("dead", "dlx")
    policy = {"pattern": ".*", "definition": {"dead-letter-exchange": "dlx"}, "apply-to": "queues"}
    rabbit.api("PUT", "/api/policies/{vhost}/dlx", policy)

    def known() -> Any:
        return rabbit.api("GET", "/api/queues/{vhost}/work").get("effective_policy_definition")

    await wait_until_async(known)
    options: dict[str, Any] = {"management_url": management_url, "require_dead_letter": True}
    await start_and_stop(RabbitConsumer(rabbit.url, queue, recorder(), **options))


@pytest.mark.parametrize("options", [{"dead_letter": False}, {}])
async def test_a_required_exchange_that_is_missing_fails_the_start(
    rabbit: Rabbit, recorder: type[Recorder], management_url: str, options: dict[str, Any]
) -> None:
    queue = rabbit.queue(dead=None)
    options = options or {"management_url": management_url}

    with pytest.raises(RabbitError, match="has no dead-letter exchange"):
        await RabbitConsumer(rabbit.url, queue, recorder(), require_dead_letter=True, **options).run()

    assert rabbit.channel.queue_declare(queue, passive=True).method.consumer_count == 0


async def test_no_answer_is_an_error_only_if_an_exchange_is_required(
    rabbit: Rabbit, recorder: type[Recorder], caplog: pytest.LogCaptureFixture, closed_port: int
) -> None:
    queue = rabbit.queue()
    missing = f"http://guest:s3cret@127.0.0.1:{closed_port}"

    await start_and_stop(RabbitConsumer(rabbit.url, queue, recorder(), management_url=missing))
    with pytest.raises(RabbitError, match="management API"):
        await RabbitConsumer(rabbit.url, queue, recorder(), management_url=missing, require_dead_letter=True).run()

    assert "cannot find out about a dead-letter exchange" in caplog.text
    assert "s3cret" not in caplog.text


class TlsBroker(RabbitMQServer):
    """Chooses its port for TLS together with the others: when one was taken meanwhile, it starts on new ones."""

    def __init__(self, made: Certificate) -> None:
        super().__init__()
        self._made = made
        self.tls_port = 0

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.tls_port = free_port()
        self._extra_config = (
            f"listeners.ssl.default = 127.0.0.1:{self.tls_port}",
            f"ssl_options.certfile = {self._made.certificate}",
            f"ssl_options.keyfile = {self._made.key}",
            f"ssl_options.cacertfile = {self._made.certificate}",
            "ssl_options.verify = verify_none",
        )


@pytest.fixture
def tls_broker(
    private_rabbitmq: Callable[..., RabbitMQServer], tmp_path: Path
) -> Iterator[TlsBroker]:  # requested here, because it starts a broker
    made = make_certificate(tmp_path)
    for path in (made.key, made.certificate):
        path.chmod(0o644)  # the broker may run as another user
    with TlsBroker(made) as server:
        yield server


async def test_tls_is_verified(tls_broker: TlsBroker, recorder: type[Recorder], action: MakeAction) -> None:
    server, certificate = tls_broker, tls_broker._made.certificate
    server.api("PUT", "/api/queues/%2F/work", {"durable": True})
    url = f"amqps://guest:guest@127.0.0.1:{server.tls_port}/%2F"

    with pytest.raises(RabbitConnectionError):
        await RabbitConsumer(url, "work", recorder(), connect_timeout_s=5.0).run()

    trusted = ssl.create_default_context(cafile=str(certificate))
    async with RabbitConsumer(url, "work", recorder(), ssl_context=trusted) as consumer:
        message = {"properties": {}, "routing_key": "work", "payload": '{"schema": "proca:event:2"}'}
        server.api("POST", "/api/exchanges/%2F/amq.default/publish", message | {"payload_encoding": "string"})
        await wait_until_async(lambda: consumer.count.ack == 1)


async def test_a_retry_circuit_without_an_end_is_warned_about(
    rabbit: Rabbit, recorder: type[Recorder], action: MakeAction, management_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After 2 x (max_retries + 1) attempts the syncer is not called any more, and the message circulates."""
    circuit = {"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    rabbit.channel.queue_declare("waiting", durable=True, arguments=circuit)
    queue = rabbit.queue(dead="waiting")
    rabbit.put(queue, action(1))
    syncer = recorder(*[False] * 100)
    options: dict[str, Any] = {"max_retries": 1, "exhausted": "dead_letter", "management_url": management_url}

    async with RabbitConsumer(rabbit.url, queue, syncer, **options) as consumer:
        await wait_until_async(lambda: consumer.count.dead_lettered >= 8)

    assert len(syncer.seen) == 4
    assert [message for message in caplog.messages if "circulates without end" in message]


async def test_dead_letters_that_end_somewhere_are_not_warned_about(
    rabbit: Rabbit, recorder: type[Recorder], management_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = rabbit.queue()
    options: dict[str, Any] = {"max_retries": 1, "exhausted": "dead_letter", "management_url": management_url}

    await start_and_stop(RabbitConsumer(rabbit.url, queue, recorder(), **options))

    assert not [message for message in caplog.messages if "circulates without end" in message]
