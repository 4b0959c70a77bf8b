"""Peeking into a dead-letter queue must not empty it."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pika
import pytest

from conquiet.testing import RabbitMQServer, wait_until

if TYPE_CHECKING:
    import subprocess

Run = Callable[..., "subprocess.CompletedProcess[str]"]


class Broker:
    """One vhost, seen by a client that is not ours."""

    def __init__(self, url: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self._connection.channel()
        self.channel.confirm_delivery()

    def queue(self, name: str, messages: int, **arguments: Any) -> None:
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.queue_declare(name, durable=True, arguments=given)
        for number in range(messages):
            death = {"queue": "work", "reason": "rejected", "count": 1}
            named = pika.BasicProperties(message_id=f"m{number}", headers={"x-death": [death]}, delivery_mode=2)
            self.channel.basic_publish("", name, b"{}", named)

    def counts(self, name: str) -> list[int]:
        """Empty a quorum queue: how often each of its messages was released (RabbitMQ 4 omits zero)."""
        found = []
        while (taken := self.channel.basic_get(name, auto_ack=True))[0] is not None:
            headers = taken[1].headers
            found.append(int(headers.get("x-acquired-count", headers.get("x-delivery-count", 0))))
        return found

    def reject(self, name: str) -> None:
        """Take the first message and reject it with requeue."""
        taken = wait_until(lambda: [one for one in [self.channel.basic_get(name)[0]] if one is not None])[0]
        self.channel.basic_reject(taken.delivery_tag, requeue=True)

    def depth(self, name: str) -> int:
        return int(self.channel.queue_declare(name, passive=True).method.message_count)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def broker(amqp_url: str) -> Iterator[Broker]:
    broker = Broker(amqp_url)
    yield broker
    broker.close()


@pytest.fixture
def dead_letters(invoke: Run, amqp_url: str, rabbitmq_server: RabbitMQServer) -> Run:
    """The command, with the management API or, with ``api=False``, without it."""

    def call(*words: str, api: bool = True) -> "subprocess.CompletedProcess[str]":
        url = rabbitmq_server.management_url if api else "http://guest:guest@127.0.0.1:1"
        env = {"CONQUIET_RABBIT_URL": amqp_url, "CONQUIET_RABBIT_API_URL": url}
        return invoke("dead-letters", *words, "--rabbit", env=env)

    return call


@pytest.fixture
def peeks_count(rabbit_release: tuple[int, int]) -> bool:
    """Return whether a quorum queue counts each peek.

    From 4.3 on it deletes messages with too many deliveries instead.
    """
    return rabbit_release < (4, 3)


PEEKS = (
    ("list", "dead"),
    ("show", "dead", "m1"),
    ("show", "dead", "2"),
    ("causes", "dead"),
    ("replay", "dead", "--all", "--dry-run"),
    ("replay", "dead", "--error", "expired"),
    ("discard", "dead", "--all", "--dry-run"),
    ("discard", "dead", "--source", "elsewhere"),
)


@pytest.mark.parametrize("api", [True, False], ids=["by the API", "by AMQP alone"])
def test_a_quorum_queue_with_a_limit_is_not_peeked_into_unasked(
    dead_letters: Run, broker: Broker, *, peeks_count: bool, api: bool
) -> None:
    broker.queue("dead", 2, x_queue_type="quorum", x_delivery_limit=3)

    refused = [dead_letters(*words, api=api) for words in PEEKS]

    assert [one.returncode for one in refused] == [2] * len(PEEKS)
    for one in refused:
        assert ("peeking counts one delivery" in one.stderr) == peeks_count
        assert ("delete every message whose delivery count already exceeds" in one.stderr) != peeks_count
        assert ("--count-a-delivery" in one.stderr) == (peeks_count or not api)
        assert ("replay --all --to QUEUE" in one.stderr) != (peeks_count or not api)
    assert ("limit of 3" in refused[0].stderr) == api
    assert broker.counts("dead") == [0, 0]


def test_a_command_that_releases_nothing_needs_no_permission(dead_letters: Run, broker: Broker) -> None:
    broker.queue("dead", 5, x_queue_type="quorum", x_delivery_limit=3)
    broker.queue("work", 0)

    back = dead_letters("replay", "dead", "--all", "--limit", "2")
    gone = dead_letters("discard", "dead", "--all", "--limit", "1")

    assert (back.stdout, gone.stdout) == ("2 replayed\n", "1 discarded\n")
    assert broker.counts("dead") == [0, 0]


def test_an_allowed_peek_stops_before_the_next_one_deletes(
    dead_letters: Run, broker: Broker, *, peeks_count: bool
) -> None:
    broker.queue("dead", 2, x_queue_type="quorum", x_delivery_limit=3)

    first = dead_letters("list", "dead", "--count-a-delivery", "--json")
    second = dead_letters("show", "dead", "2", "--count-a-delivery", "--json")
    third = dead_letters("list", "dead", "--count-a-delivery")

    if not peeks_count:  # it cannot be allowed: what would be deleted is seen only when it is too late
        assert [one.returncode for one in (first, second, third)] == [2, 2, 2]
        assert "take the limit from the queue" in first.stderr
        assert broker.counts("dead") == [0, 0]
        return
    assert [one["message_id"] for one in json.loads(first.stdout)] == ["m0", "m1"]
    assert json.loads(second.stdout)["message_id"] == "m1"
    assert third.returncode == 2
    assert "peeking once more may delete it" in third.stderr
    assert sorted(broker.counts("dead")) == [2, 3]  # the other one was left alone


def test_no_peek_deletes_what_died_of_a_delivery_limit(dead_letters: Run, broker: Broker, *, peeks_count: bool) -> None:
    """On RabbitMQ 4.3 it keeps its count, beyond the same limit of its dead-letter queue: a nack deletes it."""
    limited = {"x_queue_type": "quorum", "x_delivery_limit": 2}
    broker.queue("dead", 0, **limited)
    broker.queue("work", 1, **limited, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for _ in range(3):
        broker.reject("work")
    wait_until(lambda: broker.depth("dead") == 1)

    looks = [dead_letters("list", "dead", "--count-a-delivery").returncode for _ in range(2)]
    back = dead_letters("replay", "dead", "--all")

    assert looks == ([0, 2] if peeks_count else [2, 2])  # before 4.3 the count begins at 0
    assert back.stdout == "1 replayed\n"
    assert (broker.depth("dead"), broker.depth("work")) == (0, 1)


def test_queues_that_count_nothing_can_be_peeked_into_any_time(
    dead_letters: Run, broker: Broker, no_delivery_limit: dict[str, int]
) -> None:
    broker.queue("dead", 2)
    broker.queue("endless", 2, x_queue_type="quorum", **no_delivery_limit)
    broker.queue("deadly", 2, x_queue_type="quorum", x_delivery_limit=0)

    for _ in range(2):
        assert dead_letters("causes", "dead", api=False).returncode == 0
        assert dead_letters("causes", "endless").returncode == 0
        assert dead_letters("causes", "deadly", "--count-a-delivery").returncode == 2
    assert dead_letters("causes", "endless", "--count-a-delivery", api=False).returncode == 0  # its limit is not known

    assert broker.depth("dead") == 2
    assert broker.counts("endless") == [3, 3]
    assert broker.counts("deadly") == [0, 0]


def test_messages_that_were_not_replayed_are_reported(dead_letters: Run, broker: Broker) -> None:
    broker.queue("dead", 1)
    broker.queue("work", 0)
    broker.channel.basic_publish("", "dead", b"{}")  # it was not rejected, so it has no source

    would = dead_letters("replay", "dead", "--all", "--dry-run").stdout.splitlines()
    done = dead_letters("replay", "dead", "--all").stdout.splitlines()

    left = "1 unreplayable: they do not name their queue and stay; give --to QUEUE"
    assert (would, done) == (["1 would be replayed", left], ["1 replayed", left])


def test_the_text_of_a_message_adds_no_line(dead_letters: Run, broker: Broker) -> None:
    broker.queue("dead", 0)
    named = pika.BasicProperties(message_id="m\nforged", headers={"tenant\x1b[2J": 1})
    broker.channel.basic_publish("", "dead", b"{}", named)

    shown = dead_letters("show", "dead", "1").stdout

    assert "message_id   m\\nforged\n" in shown
    assert "headers      tenant\\x1b[2J\n" in shown
