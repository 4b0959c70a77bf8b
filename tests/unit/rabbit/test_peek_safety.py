"""The cost of peeking, from the description of the management API."""

from typing import Any

import pytest

from conquiet.rabbit.peek_safety import FREE, PeekCost, PeekUnsafeError, cost_from_description


def a_queue(kind: str = "quorum", argument: Any = None, policy: Any = None) -> dict[str, Any]:
    return {
        "type": kind,
        "arguments": {} if argument is None else {"x-delivery-limit": argument},
        "effective_policy_definition": [] if policy is None else {"delivery-limit": policy},
    }


@pytest.mark.parametrize(
    ("description", "version", "cost"),
    [
        (a_queue("classic", argument=3), "4.1.0", FREE),
        (a_queue(), "3.10.25", FREE),
        (a_queue(), "4.0.1", PeekCost(limited=True, limit=20)),
        (a_queue(argument=-1), "4.1.0", FREE),
        (a_queue(argument=5), "3.10.25", PeekCost(limited=True, limit=5)),
        (a_queue(policy=7), "3.10.25", PeekCost(limited=True, limit=7)),
        (a_queue(argument=5, policy=4), "3.13.0", PeekCost(limited=True, limit=4)),
        (a_queue(argument=0), "3.13.0", PeekCost(limited=True, limit=0)),
        (a_queue(argument=5), "4.2.9", PeekCost(limited=True, limit=5)),
        (a_queue(argument=5), "4.3.0", PeekCost(limited=True, limit=5, counted=False)),  # not any more
        (a_queue(), "4.3.0", PeekCost(limited=True, limit=20, counted=False)),
        (a_queue(policy=-1), "4.3.0", FREE),
        (a_queue(), "unreadable", FREE),
    ],
)
def test_the_cost_depends_on_type_limit_and_version(description: dict[str, Any], version: str, cost: PeekCost) -> None:
    assert cost_from_description(description, version) == cost


@pytest.mark.parametrize(
    ("cost", "deliveries", "allowed", "stops"),
    [
        (PeekCost(limited=True, limit=3), 1, False, False),
        (PeekCost(limited=True, limit=3), 2, False, True),
        (PeekCost(limited=True, limit=3), 2, True, True),
        (PeekCost(limited=True), 1, False, True),
        (PeekCost(limited=True), 18, True, False),
        (PeekCost(limited=True), 19, True, True),  # as if it had the default of RabbitMQ 4
        (PeekCost(limited=True, limit=3), None, False, False),
        (PeekCost(limited=True, limit=3, counted=False), 3, False, False),
        (FREE, 1_000, False, False),
    ],
)
def test_a_message_that_the_next_release_may_delete_stops_the_call(
    cost: PeekCost, deliveries: int | None, *, allowed: bool, stops: bool
) -> None:
    if not stops:
        cost.check_deliveries("dead", deliveries, count_a_delivery=allowed)
        return
    with pytest.raises(PeekUnsafeError, match="replay or discard it now"):
        cost.check_deliveries("dead", deliveries, count_a_delivery=allowed)


@pytest.mark.parametrize(
    ("cost", "deletes"),
    [
        (FREE, False),
        (PeekCost(limited=True, limit=20), False),
        (PeekCost(limited=True, limit=0), True),  # not one delivery is left
        (PeekCost(limited=True, limit=20, counted=False), True),  # a message that came with a higher count
        (PeekCost(limited=True, counted=False), False),  # it may have no limit at all, so it can be allowed
    ],
)
def test_peeking_that_deletes_messages_cannot_be_allowed(cost: PeekCost, *, deletes: bool) -> None:
    assert cost.deletes is deletes
    if cost.limited:
        with pytest.raises(PeekUnsafeError) as refused:
            cost.require_free("dead", count_a_delivery=False)
        assert refused.value.would_delete is deletes
    if deletes:
        with pytest.raises(PeekUnsafeError):
            cost.require_free("dead", count_a_delivery=True)
    else:
        cost.require_free("dead", count_a_delivery=True)
