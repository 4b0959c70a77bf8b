"""Decide the disposition of a delivery: one table, one function, no I/O. SPEC(004 §4, §5).

    verdict                        first time       seen before
    ─────────────────────────────  ───────────────  ───────────────────────────────
    Done                           ACK              ACK
    Refused, Unreadable            REQUEUE          DEAD_LETTER
    Rejected                       DEAD_LETTER      DEAD_LETTER
    Exhausted (x-death)            MOVE, DROP or DEAD_LETTER: by the setting ``exhausted``
    ContractBroken, KeyFault       STOP             STOP, with poison_guard: DEAD_LETTER_AND_STOP (once per process)

The policy defines "seen before". ``redelivered`` uses the broker's flag, which means *perhaps* delivered before: one
crash marks every message in the prefetch window. ``delivery_count`` uses the count of the quorum queue, but only on a
redelivery: at a first delivery a publisher may have written the header.

See docs/decisions/0021.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Literal, assert_never

from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.proca.decrypt import KeyFault
from conquiet.rabbit.syncer import ContractBroken, Done, Refused, Rejected

PolicyName = Literal["redelivered", "delivery_count"]
OnExhausted = Literal["move", "drop", "dead_letter"]


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The retry count exceeds ``max_retries``; the message was not decoded."""

    reason: ClassVar[str] = "retry limit"


Verdict = Done | Refused | Rejected | Unreadable | Exhausted | ContractBroken | KeyFault
"""Each has a ``reason``, for logs and headers: a constant, names of types, or the text of ``DeadLetterNow``."""


class Disposition(Enum):
    """The way in which a delivery is settled, or left unsettled."""

    ACK = "ack"
    DROP = "drop"  # acknowledged without processing
    REQUEUE = "requeue"
    DEAD_LETTER = "dead_letter"
    MOVE = "move"  # published to ``<queue>.dead`` by the consumer, then acknowledged
    STOP = "stop"  # left unsettled: it returns to the queue when the channel closes
    DEAD_LETTER_AND_STOP = "dead_letter_and_stop"


@dataclass(frozen=True, slots=True)
class DeliveryFacts:
    """Facts about a delivery, from the broker.

    Attributes:
        redelivered: The flag of the delivery.
        delivery_count: ``x-delivery-count``; None if it is missing.
        counts_failures: True if the queue counts only failures there, and all deliveries in ``x-acquired-count``
            (RabbitMQ 4.3). A missing count then means no failure.
    """

    redelivered: bool
    delivery_count: int | None = None
    counts_failures: bool = False

    @property
    def attempt(self) -> int | None:
        """Number of this attempt; None if it is a redelivery and the queue does not count them."""
        if not self.redelivered:
            return 1
        if not self.delivery_count and not self.counts_failures:
            return None
        return (self.delivery_count or 0) + 1


FIRST_DELIVERY: Final = DeliveryFacts(redelivered=False)


@dataclass(frozen=True, slots=True)
class SettlePolicy:
    """The settings that decide dispositions; see ``RabbitSettings``.

    Attributes:
        name: The definition of "seen before".
        max_requeues: With ``delivery_count``: how often a failing message returns to the queue.
        exhausted: Treatment of a message past ``max_retries``.
        poison_guard: Dead-letter a message that was seen before and breaks the contract.
    """

    name: PolicyName = "redelivered"
    max_requeues: int = 1
    exhausted: OnExhausted = "move"
    poison_guard: bool = False

    def seen_before(self, facts: DeliveryFacts) -> bool:
        """Return whether the message has used up its requeues."""
        if self.name == "redelivered" or not facts.redelivered:
            return facts.redelivered
        # The queue is a classic one and does not count: a quorum queue would have counted this redelivery. Prefer to
        # dead-letter early: the alternative is to requeue a message without end.
        return facts.attempt is None or facts.attempt > self.max_requeues


def attempt_of(facts: DeliveryFacts, policy: SettlePolicy) -> tuple[int, int] | None:
    """Return the number of this attempt and the maximum number of attempts; None if unknown."""
    if policy.name == "redelivered":
        return (2 if facts.redelivered else 1), 2
    most = policy.max_requeues + 1
    return None if facts.attempt is None else (min(facts.attempt, most), most)


_EXHAUSTED: Final[dict[OnExhausted, Disposition]] = {
    "move": Disposition.MOVE,
    "drop": Disposition.DROP,
    "dead_letter": Disposition.DEAD_LETTER,
}


def decide(verdict: Verdict, facts: DeliveryFacts, policy: SettlePolicy) -> Disposition:
    """Return the disposition of a delivery with this verdict."""
    match verdict:
        case Done():
            return Disposition.ACK
        case Refused() | Unreadable():
            return Disposition.DEAD_LETTER if policy.seen_before(facts) else Disposition.REQUEUE
        case Rejected():
            return Disposition.DEAD_LETTER
        case Exhausted():
            return _EXHAUSTED[policy.exhausted]
        case ContractBroken() | KeyFault():
            guarded = policy.poison_guard and policy.seen_before(facts)
            return Disposition.DEAD_LETTER_AND_STOP if guarded else Disposition.STOP
        case _:
            assert_never(verdict)
