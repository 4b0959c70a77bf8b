"""The broker's view for the tests: queues are made, filled and inspected by a client that is not conquiet's."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import pika
import pytest

from conquiet.core.backoff import Backoff
from conquiet.testing import wait_until
from conquiet.testing.rabbitmq import RabbitMQServer

if TYPE_CHECKING:
    from conquiet.rabbit import RabbitConsumer


class Rabbit:
    """One vhost."""

    def __init__(self, url: str, api: Callable[..., Any]) -> None:
        self.url = url
        self.vhost = unquote(urlsplit(url).path[1:])
        self._api = api
        self._connection: Any = None
        self._open: Any = None

    @property
    def channel(self) -> Any:
        """A separate channel; opened again after the broker or a test closed it."""
        if self._open is None or not self._open.is_open or not self._connection.is_open:
            self._connection = pika.BlockingConnection(pika.URLParameters(self.url))
            self._open = self._connection.channel()
            self._open.confirm_delivery()
        return self._open

    def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()

    def api(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        return self._api(method, path.replace("{vhost}", quote(self.vhost, safe="")), body, missing_ok=missing_ok)

    @property
    def counts_nacks(self) -> bool:
        """Return whether a nack counts toward the delivery limit of a quorum queue."""
        version: str = self.api("GET", "/api/overview")["rabbitmq_version"]
        return tuple(map(int, version.split(".")[:2])) < (4, 3)

    def queue(self, name: str = "work", *, quorum: bool = False, dead: str | None = "dead", **arguments: Any) -> str:
        """Make a durable queue that dead-letters to the queue ``dead``."""
        extra = {key.replace("_", "-"): value for key, value in arguments.items()}
        if dead is not None:
            if dead == "dead":  # the test makes all others, with its own arguments
                self.channel.queue_declare(dead, durable=True)
            extra |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        if quorum:
            extra["x-queue-type"] = "quorum"
        self.channel.queue_declare(name, durable=True, arguments=extra)
        return name

    def put(self, queue: str, *bodies: Any, headers: dict[str, Any] | None = None) -> None:
        for body in bodies:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.channel.basic_publish(
                "", queue, raw, pika.BasicProperties(delivery_mode=2, headers=headers), mandatory=True
            )

    def take(self, queue: str) -> list[tuple[Any, bytes]]:
        """Empty a queue: (headers, body) of each message."""
        taken: list[tuple[Any, bytes]] = []
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return taken
            taken.append((properties.headers, body))

    def depth(self, queue: str) -> int:
        """Messages that are ready; not those in flight."""
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def wait_for_depth(self, queue: str, depth: int, timeout_s: float = 180.0) -> None:
        wait_until(lambda: self.depth(queue) == depth, timeout_s=timeout_s, message=f"{depth} messages in {queue}")

    def consumers(self) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.api("GET", "/api/consumers/{vhost}")
        return answer

    def wait_for_consumers(self, number: int, timeout_s: float = 180.0) -> list[dict[str, Any]]:
        """Wait until the broker itself lists exactly this many consumers."""

        def seen() -> list[list[dict[str, Any]]]:
            consumers = self.consumers()
            return [consumers] if len(consumers) == number else []

        return wait_until(seen, timeout_s=timeout_s, interval_s=0.1, message=f"{number} consumers")[0]

    def close_connections_of(self, name_part: str) -> int:
        """Make the broker close connections of clients with this name."""
        closed = 0
        for connection in self.api("GET", "/api/vhosts/{vhost}/connections"):
            if name_part in connection.get("client_properties", {}).get("connection_name", ""):
                # The connection may have ended since it was listed.
                self.api("DELETE", f"/api/connections/{quote(connection['name'], safe='')}", missing_ok=True)
                closed += 1
        return closed


@pytest.fixture
def rabbit(rabbitmq_server: RabbitMQServer, amqp_url: str) -> Iterator[Rabbit]:
    broker = Rabbit(amqp_url, rabbitmq_server.api)
    yield broker
    broker.close()


MakeAction = Callable[..., dict[str, Any]]


class Recorder:
    """A syncer that records its messages and returns the given results."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[Any] = []
        self.stop_after: int | None = None
        self.consumer: RabbitConsumer | None = None

    async def __call__(self, message: Any) -> Any:
        self.seen.append(message)
        if self.consumer is not None and len(self.seen) == self.stop_after:
            self.consumer.stop()
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture
def action() -> MakeAction:
    """Builds actions of the original's format."""

    def an_action(number: int = 1, **fields: Any) -> dict[str, Any]:
        return {
            "schema": "proca:action:2",
            "actionId": number,
            "campaignId": 10,
            "orgId": 20,
            "actionPageId": 30,
            "campaign": {"name": "c"},
            "contact": {"email": "old"},
            **fields,
        }

    return an_action


@pytest.fixture
def fast() -> dict[str, Any]:
    """Options that make reconnects quick."""
    return {"reconnect": Backoff(base_s=0.05, cap_s=0.5), "connect_timeout_s": 5.0, "grace_s": 5.0}
