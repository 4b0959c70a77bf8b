"""Checks of RabbitMQ as pure functions."""

import pytest

from conquiet.errors import ConfigurationError
from conquiet.management.doctor.rabbit import CHECKS as RABBIT_CHECKS
from conquiet.management.doctor.rabbit import RabbitFacts, examine_rabbit


def rabbit(queue: dict[str, object] | None = None, *, version: str = "3.13.0") -> set[str]:
    healthy = {"name": "orders", "durable": True, "type": "quorum"} | {
        "arguments": {"x-dead-letter-exchange": "", "x-delivery-limit": 5}
    }
    facts = RabbitFacts(version, (healthy | (queue or {}),))
    return {finding.check for check in RABBIT_CHECKS for finding in check(facts)}


@pytest.mark.parametrize(
    ("queue", "checks"),
    [
        ({}, set()),
        ({"type": "classic"}, {"rabbit.queue_type"}),
        ({"messages_unacknowledged": 20_000}, {"rabbit.unacked"}),
        ({"arguments": {}, "effective_policy_definition": {"dead-letter-exchange": "x", "delivery-limit": 3}}, set()),
        ({"effective_policy_definition": {"consumer-timeout": 5_000}}, {"rabbit.consumer_timeout"}),
        ({"arguments": {"x-dead-letter-exchange": ""}}, {"rabbit.delivery_limit"}),
    ],
)
def test_a_dangerous_queue_is_found(queue: dict[str, object], checks: set[str]) -> None:
    assert rabbit(queue) == checks


def test_from_4_3_on_a_classic_queue_has_no_consumer_timeout() -> None:
    hasty: dict[str, object] = {"effective_policy_definition": {"consumer-timeout": 5_000}}
    classic = hasty | {"type": "classic"}

    assert rabbit(hasty, version="4.3.0") == {"rabbit.consumer_timeout"}
    assert rabbit(classic, version="4.2.0") == {"rabbit.consumer_timeout", "rabbit.queue_type"}
    assert rabbit(classic, version="4.3.0") == {"rabbit.queue_type"}


def test_from_4_0_on_quorum_queues_have_a_limit_by_default() -> None:
    assert rabbit({"arguments": {"x-dead-letter-exchange": ""}}, version="4.0.1") == set()
    assert rabbit(version="3.9.29") == {"rabbit.version"}


def dead_letters(arguments: dict[str, object], *, version: str = "3.13.0", bound: bool = False) -> list[str]:
    """Return the findings about the queue that gets the rejects of ``orders``."""
    to = {"x-dead-letter-exchange": "orders.dlx"} if bound else {"x-dead-letter-routing-key": "orders.dead"}
    orders = {
        "name": "orders",
        "type": "quorum",
        "arguments": {"x-dead-letter-exchange": "", "x-delivery-limit": 5} | to,
    }
    dead = {"name": "orders.dead", "type": "quorum", "arguments": arguments}
    facts = RabbitFacts(version, (orders, dead), bound_to_dlx=frozenset({"orders.dead"} if bound else ()))
    return [finding.what for check in RABBIT_CHECKS for finding in check(facts)]


@pytest.mark.parametrize("bound", [True, False])
def test_a_dead_letter_queue_with_a_limit_is_a_warning(*, bound: bool) -> None:
    """With a limit, peeking deletes dead letters: after too many peeks, or from 4.3 on if their count was too high."""
    assert dead_letters({}, bound=bound) == []
    assert dead_letters({"x-delivery-limit": 5}, bound=bound) == [
        "dead-letter queue 'orders.dead' has a delivery limit of 5"
    ]
    for version in ("4.1.0", "4.3.0"):
        assert dead_letters({}, bound=bound, version=version) == [
            "dead-letter queue 'orders.dead' has a delivery limit of 20"
        ]
    assert dead_letters({"x-delivery-limit": -1}, bound=bound, version="4.1.0") == []


def test_a_queue_that_passes_rejects_on_may_have_a_limit() -> None:
    """A queue for retries gets rejects, and what is given up there is not lost."""
    assert dead_letters({"x-dead-letter-exchange": "", "x-delivery-limit": 5}) == []


def test_a_limit_that_was_switched_off_is_none() -> None:
    arguments = {"x-dead-letter-exchange": "", "x-delivery-limit": -1}
    assert rabbit({"arguments": arguments}, version="4.1.0") == {"rabbit.delivery_limit"}


def test_an_exclusive_queue_is_meant_to_go_with_its_connection() -> None:
    fleeting = {"durable": False, "type": "classic", "arguments": {}}

    assert rabbit(fleeting) == {"rabbit.durability", "rabbit.dead_letters"}
    assert rabbit(fleeting | {"exclusive": True}) == set()


@pytest.mark.parametrize(
    "url", ["host:15672", "amqp://host:1", "localhost", "http://", "", "http://[::1", "http://u:geheim@host:port"]
)
def test_a_management_url_without_a_scheme_or_a_host_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="http://user:password@host:15672") as refused:
        examine_rabbit(url)

    assert refused.value.__context__ is None, "urllib's own words quote the URL"
