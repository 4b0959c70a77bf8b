"""Seed 004's rules as one table, without a broker."""

from itertools import product
from typing import Any

import pytest
from pika import BasicProperties

from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.decrypt import KeyFault
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.settle import Exhausted, Facts, Settlement, SettlePolicy, Verdict, decide
from conquiet.rabbit.syncer import ContractBroken, Done, Refused

FAILURES: list[Verdict] = [Refused(), Unreadable("body is not JSON"), Unreadable("unknown schema")]
FATAL: list[Verdict] = [ContractBroken("raised"), KeyFault("pub", "unknown")]
COUNTS = [None, 0, 1, 2, 7]
ALL_FACTS = [Facts(redelivered, count) for redelivered, count in product([False, True], COUNTS)]
DEFAULT = SettlePolicy()
COUNTING = SettlePolicy(name="delivery_count")


@pytest.mark.spec("MW-004.3")
@pytest.mark.parametrize("policy", [DEFAULT, COUNTING])
@pytest.mark.parametrize("facts", ALL_FACTS)
def test_done_is_acknowledged_whatever_the_history(facts: Facts, policy: SettlePolicy) -> None:
    assert decide(Done(), facts, policy) is Settlement.ACK


@pytest.mark.spec("MW-002.6", "MW-002.8", "MW-004.4", "MW-005.2", "MW-005.3", "MW-005.4", "MW-001.5")
@pytest.mark.parametrize("verdict", FAILURES)
@pytest.mark.parametrize("facts", ALL_FACTS)
def test_a_failure_is_requeued_once_and_then_dead_lettered(facts: Facts, verdict: Verdict) -> None:
    expected = Settlement.DEAD_LETTER if facts.redelivered else Settlement.REQUEUE

    assert decide(verdict, facts, DEFAULT) is expected


@pytest.mark.parametrize("verdict", FAILURES)
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_with_delivery_count_the_queues_own_count_decides(count: int, limit: int, verdict: Verdict) -> None:
    policy = SettlePolicy(name="delivery_count", max_requeues=limit)
    expected = Settlement.DEAD_LETTER if count >= limit else Settlement.REQUEUE

    assert decide(verdict, Facts(redelivered=True, delivery_count=count), policy) is expected


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_at_a_first_delivery_is_not_the_queues_own(count: int | None) -> None:
    """A publisher wrote it, or copied it with the other headers from another queue."""
    assert decide(Refused(), Facts(redelivered=False, delivery_count=count), COUNTING) is Settlement.REQUEUE


@pytest.mark.parametrize("count", [None, 0])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_redelivery_without_a_count_comes_from_a_queue_that_does_not_count(count: int | None, limit: int) -> None:
    policy = SettlePolicy(name="delivery_count", max_requeues=limit)

    assert decide(Refused(), Facts(redelivered=True, delivery_count=count), policy) is Settlement.DEAD_LETTER


@pytest.mark.parametrize("count", [None, 0])
def test_what_was_only_handed_back_has_not_failed_where_the_queue_knows(count: int | None) -> None:
    """RabbitMQ 4.3: the second count tells a queue that has seen no failure from one that does not count."""
    never_failed = Facts(redelivered=True, delivery_count=count, counts_failures=True)

    assert decide(Refused(), never_failed, DEFAULT) is Settlement.DEAD_LETTER
    assert decide(Refused(), never_failed, COUNTING) is Settlement.REQUEUE
    guarded = SettlePolicy(name="delivery_count", poison_guard=True)
    assert decide(ContractBroken("raised"), never_failed, guarded) is Settlement.STOP


@pytest.mark.spec("MW-002.3", "MW-005.1")
@pytest.mark.parametrize("facts", ALL_FACTS)
def test_past_the_retry_limit_the_redelivery_guard_has_no_say(facts: Facts) -> None:
    assert decide(Exhausted(), facts, DEFAULT) is Settlement.DROP
    assert decide(Exhausted(), facts, SettlePolicy(exhausted="dead_letter")) is Settlement.DEAD_LETTER


@pytest.mark.spec("MW-004.5", "MW-004.6", "MW-006.3")
@pytest.mark.parametrize("verdict", FATAL)
@pytest.mark.parametrize("facts", ALL_FACTS)
def test_a_broken_contract_stops_the_process_and_settles_nothing(facts: Facts, verdict: Verdict) -> None:
    assert decide(verdict, facts, DEFAULT) is Settlement.STOP


@pytest.mark.parametrize("verdict", FATAL)
@pytest.mark.parametrize("redelivered", [False, True])
def test_the_poison_guard_parks_what_broke_the_system_before(verdict: Verdict, *, redelivered: bool) -> None:
    policy = SettlePolicy(poison_guard=True)

    settlement = decide(verdict, Facts(redelivered), policy)

    assert settlement is (Settlement.DEAD_LETTER_AND_STOP if redelivered else Settlement.STOP)


@pytest.mark.parametrize(
    ("headers", "facts"),
    [
        (None, Facts(redelivered=True)),
        ({"x-delivery-count": 2}, Facts(redelivered=True, delivery_count=2)),
        ({"x-acquired-count": 1}, Facts(redelivered=True, counts_failures=True)),
        ({"x-acquired-count": 3, "x-delivery-count": 0}, Facts(True, 0, counts_failures=True)),  # noqa: FBT003
    ],
)
def test_the_facts_are_read_from_what_the_broker_sent(headers: Any, facts: Facts) -> None:
    session: Any = None
    raw = b"".join(BasicProperties(headers=headers).encode())
    delivery = Delivery(session, 1, True, raw, b"")  # noqa: FBT003
    (delivery.headers or {}).clear()

    assert delivery.facts == facts
