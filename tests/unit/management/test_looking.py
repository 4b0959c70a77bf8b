"""What a look costs, by what the management API says."""

from typing import Any

import pytest

from conquiet.management.looking import FREE, Cost, CountedLookError, cost_by_facts


def a_queue(kind: str = "quorum", argument: Any = None, policy: Any = None) -> dict[str, Any]:
    return {
        "type": kind,
        "arguments": {} if argument is None else {"x-delivery-limit": argument},
        "effective_policy_definition": [] if policy is None else {"delivery-limit": policy},
    }


@pytest.mark.parametrize(
    ("facts", "version", "cost"),
    [
        (a_queue("classic", argument=3), "4.1.0", FREE),
        (a_queue(), "3.10.25", FREE),
        (a_queue(), "4.0.1", Cost(counted=True, limit=20)),
        (a_queue(argument=-1), "4.1.0", FREE),
        (a_queue(argument=5), "3.10.25", Cost(counted=True, limit=5)),
        (a_queue(policy=7), "3.10.25", Cost(counted=True, limit=7)),
        (a_queue(argument=5, policy=4), "3.13.0", Cost(counted=True, limit=4)),
        (a_queue(argument=0), "3.13.0", Cost(counted=True, limit=0)),
        (a_queue(argument=5), "4.2.9", Cost(counted=True, limit=5)),
        (a_queue(argument=5), "4.3.0", FREE),  # a nack is not counted any more
        (a_queue(), "unreadable", FREE),
    ],
)
def test_the_cost_of_a_look_by_type_limit_and_version(facts: dict[str, Any], version: str, cost: Cost) -> None:
    assert cost_by_facts(facts, version) == cost


@pytest.mark.parametrize(
    ("cost", "deliveries", "stops"),
    [
        (Cost(counted=True, limit=3), 1, False),
        (Cost(counted=True, limit=3), 2, True),
        (Cost(counted=True), 18, False),
        (Cost(counted=True), 19, True),  # as if it had the default of RabbitMQ 4
        (Cost(counted=True, limit=3), None, False),
        (FREE, 1_000, False),
    ],
)
def test_a_message_that_the_next_look_would_delete_stops_this_one(
    cost: Cost, deliveries: int | None, *, stops: bool
) -> None:
    if not stops:
        cost.check("dead", deliveries)
        return
    with pytest.raises(CountedLookError, match="replay or discard it now"):
        cost.check("dead", deliveries)
