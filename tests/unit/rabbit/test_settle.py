"""Seed 004's rules as one table, without a broker."""

from itertools import product
from typing import Any

import pytest
from pika import BasicProperties

from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.proca.decrypt import KeyFault
from conquiet.rabbit.settle import DeliveryFacts, Disposition, Exhausted, SettlePolicy, Verdict, attempt_of, decide
from conquiet.rabbit.syncer import ContractBroken, Done, Refused

FAILURES: list[Verdict] = [Refused(), Unreadable("body is not JSON"), Unreadable("unknown schema")]
FATAL: list[Verdict] = [ContractBroken("raised"), KeyFault("pub", "unknown")]
COUNTS = [None, 0, 1, 2, 7]
ALL_FACTS = [DeliveryFacts(redelivered, count) for redelivered, count in product([False, True], COUNTS)]
DEFAULT = SettlePolicy()
COUNTING = SettlePolicy(name="delivery_count")


@pytest.mark.spec("MW-004.3")
@pytest.mark.parametrize("policy", [DEFAULT, COUNTING])
@pytest.mark.parametrize("facts", ALL_FACTS)
def test_done_is_acknowledged_whatever_the_history(facts: DeliveryFacts, policy: SettlePolicy) -> None:
    assert decide(Done(), facts, policy) is Disposition.ACK


@pytest.mark.spec("MW-002.6", "MW-002.8", "MW-004.4", "MW-005.2", "MW-005.3", "MW-005.4", "MW-001.5")
@pytest.mark.parametrize("verdict", FAILURES)
@pytest.mark.parametrize("facts", ALL_FACTS)
def test_a_failure_is_requeued_once_and_then_dead_lettered(facts: DeliveryFacts, verdict: Verdict) -> None:
    expected = Disposition.DEAD_LETTER if facts.redelivered else Disposition.REQUEUE

    assert decide(verdict, facts, DEFAULT) is expected


@pytest.mark.parametrize("verdict", FAILURES)
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_with_delivery_count_the_queues_own_count_decides(count: int, limit: int, verdict: Verdict) -> None:
    policy = SettlePolicy(name="delivery_count", max_requeues=limit)
    expected = Disposition.DEAD_LETTER if count >= limit else Disposition.REQUEUE

    assert decide(verdict, DeliveryFacts(redelivered=True, delivery_count=count), policy) is expected


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_at_a_first_delivery_is_not_the_queues_own(count: int | None) -> None:
    """A publisher wrote it, or copied it with the other headers from another queue."""
    assert decide(Refused(), DeliveryFacts(redelivered=False, delivery_count=count), COUNTING) is Disposition.REQUEUE


@pytest.mark.parametrize("count", [None, 0])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_redelivery_without_a_count_uses_the_flag(count: int | None, limit: int) -> None:
    policy = SettlePolicy(name="delivery_count", max_requeues=limit)

    assert decide(Refused(), DeliveryFacts(redelivered=True, delivery_count=count), policy) is Disposition.DEAD_LETTER


@pytest.mark.parametrize("count", [None, 0])
def test_a_released_message_has_not_failed_where_the_queue_counts_failures(count: int | None) -> None:
    """RabbitMQ 4.3: the second count distinguishes a queue without failures from a queue that does not count."""
    never_failed = DeliveryFacts(redelivered=True, delivery_count=count, counts_failures=True)

    assert decide(Refused(), never_failed, DEFAULT) is Disposition.DEAD_LETTER
    assert decide(Refused(), never_failed, COUNTING) is Disposition.REQUEUE
    guarded = SettlePolicy(name="delivery_count", poison_guard=True)
    assert decide(ContractBroken("raised"), never_failed, guarded) is Disposition.STOP


@pytest.mark.spec("MW-002.3", "MW-005.1")
@pytest.mark.parametrize("facts", ALL_FACTS)
def test_past_the_retry_limit_the_redelivery_guard_has_no_say(facts: DeliveryFacts) -> None:
    assert decide(Exhausted(), facts, DEFAULT) is Disposition.MOVE
    assert decide(Exhausted(), facts, SettlePolicy(exhausted="drop")) is Disposition.DROP
    assert decide(Exhausted(), facts, SettlePolicy(exhausted="dead_letter")) is Disposition.DEAD_LETTER


@pytest.mark.spec("MW-004.5", "MW-004.6", "MW-006.3")
@pytest.mark.parametrize("verdict", FATAL)
@pytest.mark.parametrize("facts", ALL_FACTS)
def test_a_broken_contract_stops_the_process_and_settles_nothing(facts: DeliveryFacts, verdict: Verdict) -> None:
    assert decide(verdict, facts, DEFAULT) is Disposition.STOP


@pytest.mark.parametrize("verdict", FATAL)
@pytest.mark.parametrize("redelivered", [False, True])
def test_the_poison_guard_parks_what_broke_the_system_before(verdict: Verdict, *, redelivered: bool) -> None:
    policy = SettlePolicy(poison_guard=True)

    disposition = decide(verdict, DeliveryFacts(redelivered), policy)

    assert disposition is (Disposition.DEAD_LETTER_AND_STOP if redelivered else Disposition.STOP)


@pytest.mark.parametrize(
    ("headers", "facts"),
    [
        (None, DeliveryFacts(redelivered=True)),
        ({"x-delivery-count": 2}, DeliveryFacts(redelivered=True, delivery_count=2)),
        ({"x-acquired-count": 1}, DeliveryFacts(redelivered=True, counts_failures=True)),
        ({"x-acquired-count": 3, "x-delivery-count": 0}, DeliveryFacts(True, 0, counts_failures=True)),  # noqa: FBT003
    ],
)
def test_the_facts_are_read_from_what_the_broker_sent(headers: Any, facts: DeliveryFacts) -> None:
    session: Any = None
    raw = b"".join(BasicProperties(headers=headers).encode())
    delivery = Delivery(session, 1, True, raw, b"")  # noqa: FBT003
    (delivery.headers or {}).clear()

    assert delivery.facts == facts


def test_counts_of_a_first_delivery_are_not_read() -> None:
    """A publisher or another queue has written them, and every traced message asks for its attempt."""
    session: Any = None
    raw = b"".join(BasicProperties(headers={"x-delivery-count": 2}).encode())

    assert Delivery(session, 1, False, raw, b"").facts == DeliveryFacts(redelivered=False)  # noqa: FBT003


@pytest.mark.parametrize(
    ("facts", "policy", "expected"),
    [
        (DeliveryFacts(redelivered=False), SettlePolicy(), (1, 2)),
        (DeliveryFacts(redelivered=True), SettlePolicy(), (2, 2)),
        (DeliveryFacts(redelivered=False, delivery_count=7), SettlePolicy("delivery_count", max_requeues=4), (1, 5)),
        (DeliveryFacts(redelivered=True, delivery_count=3), SettlePolicy("delivery_count", max_requeues=4), (4, 5)),
        (DeliveryFacts(redelivered=True, delivery_count=9), SettlePolicy("delivery_count", max_requeues=4), (5, 5)),
        (DeliveryFacts(redelivered=True, counts_failures=True), SettlePolicy("delivery_count", max_requeues=4), (1, 5)),
        (DeliveryFacts(redelivered=True), SettlePolicy("delivery_count", max_requeues=4), None),
    ],
)
def test_the_attempt_is_known_where_the_flag_or_the_queue_counts(
    facts: DeliveryFacts, policy: SettlePolicy, expected: tuple[int, int] | None
) -> None:
    assert attempt_of(facts, policy) == expected


@pytest.mark.parametrize("count", range(6))
def test_the_last_attempt_is_the_one_that_is_dead_lettered(count: int) -> None:
    facts, policy = DeliveryFacts(count > 0, count or None), SettlePolicy("delivery_count", max_requeues=4)
    attempt = attempt_of(facts, policy)
    assert attempt is not None
    assert (decide(Refused(), facts, policy) is Disposition.DEAD_LETTER) == (attempt[0] == attempt[1])
