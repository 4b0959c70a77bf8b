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
        (a_queue(), "4.0.1", Cost(limited=True, limit=20)),
        (a_queue(argument=-1), "4.1.0", FREE),
        (a_queue(argument=5), "3.10.25", Cost(limited=True, limit=5)),
        (a_queue(policy=7), "3.10.25", Cost(limited=True, limit=7)),
        (a_queue(argument=5, policy=4), "3.13.0", Cost(limited=True, limit=4)),
        (a_queue(argument=0), "3.13.0", Cost(limited=True, limit=0)),
        (a_queue(argument=5), "4.2.9", Cost(limited=True, limit=5)),
        (a_queue(argument=5), "4.3.0", Cost(limited=True, limit=5, counted=False)),  # not any more
        (a_queue(), "4.3.0", Cost(limited=True, limit=20, counted=False)),
        (a_queue(policy=-1), "4.3.0", FREE),
        (a_queue(), "unreadable", FREE),
    ],
)
def test_the_cost_of_a_look_by_type_limit_and_version(facts: dict[str, Any], version: str, cost: Cost) -> None:
    assert cost_by_facts(facts, version) == cost


@pytest.mark.parametrize(
    ("cost", "deliveries", "stops"),
    [
        (Cost(limited=True, limit=3), 1, False),
        (Cost(limited=True, limit=3), 2, True),
        (Cost(limited=True), 18, False),
        (Cost(limited=True), 19, True),  # as if it had the default of RabbitMQ 4
        (Cost(limited=True, limit=3), None, False),
        (Cost(limited=True, limit=3, counted=False), 3, False),
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


@pytest.mark.parametrize(
    ("cost", "deadly"),
    [
        (FREE, False),
        (Cost(limited=True, limit=20), False),
        (Cost(limited=True, limit=0), True),  # not one delivery is left
        (Cost(limited=True, limit=20, counted=False), True),  # for whatever came with more
        (Cost(limited=True, counted=False), False),  # it may have no limit at all: whoever knows may allow it
    ],
)
def test_a_look_that_would_delete_messages_is_known(cost: Cost, *, deadly: bool) -> None:
    assert cost.deadly is deadly
    if cost.limited:
        with pytest.raises(CountedLookError) as refused:
            cost.refuse("dead")
        assert refused.value.deadly is deadly
