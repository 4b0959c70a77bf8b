"""Decide what happens to a delivery: one table, one function, no I/O. SPEC(004 §4, §5).

    verdict                        first time       seen before
    ─────────────────────────────  ───────────────  ───────────────────────────────
    Done                           ACK              ACK
    Refused, Unreadable            REQUEUE          DEAD_LETTER
    Rejected                       DEAD_LETTER      DEAD_LETTER
    Exhausted (x-death)            MOVE, DROP or DEAD_LETTER: as ``exhausted`` says
    ContractBroken, KeyFault       STOP             STOP, with poison_guard: DEAD_LETTER_AND_STOP (once a process)

The policy decides what "seen before" is. ``redelivered`` takes the broker's flag, which means *perhaps* delivered
before: one crash marks everything that was in the prefetch window. ``delivery_count`` takes the quorum queue's own
count, where the queue can have written it: any publisher can write headers.

See docs/decisions/0021.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, assert_never

from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.proca.decrypt import KeyFault
from conquiet.rabbit.syncer import ContractBroken, Done, Refused, Rejected

PolicyName = Literal["redelivered", "delivery_count"]
OnExhausted = Literal["move", "drop", "dead_letter"]


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The retry count exceeds ``max_retries``; the message was not decoded."""


Verdict = Done | Refused | Rejected | Unreadable | Exhausted | ContractBroken | KeyFault


class Disposition(Enum):
    """What can happen to a delivery."""

    ACK = "ack"
    DROP = "drop"  # acknowledged without having been processed
    REQUEUE = "requeue"
    DEAD_LETTER = "dead_letter"
    MOVE = "move"  # published to ``<queue>.dead`` by the consumer, then acknowledged
    STOP = "stop"  # left unsettled: it goes back to the queue when the channel closes
    DEAD_LETTER_AND_STOP = "dead_letter_and_stop"


@dataclass(frozen=True, slots=True)
class DeliveryFacts:
    """What the broker says about a delivery.

    Attributes:
        redelivered: The flag of the delivery.
        delivery_count: ``x-delivery-count``, None where the queue does not count.
        counts_failures: Whether the queue counts only failures, and the deliveries apart from them in
            ``x-acquired-count`` (RabbitMQ 4.3): a missing count then means no failure.
    """

    redelivered: bool
    delivery_count: int | None = None
    counts_failures: bool = False


@dataclass(frozen=True, slots=True)
class SettlePolicy:
    """The choices a deployment makes.

    Attributes:
        name: How "seen before" is found out.
        max_requeues: With ``delivery_count``: how often a failing message is put back.
        exhausted: What becomes of a message past ``max_retries``.
        poison_guard: Whether a message that was seen before and breaks the system is dead-lettered.
    """

    name: PolicyName = "redelivered"
    max_requeues: int = 1
    exhausted: OnExhausted = "drop"
    poison_guard: bool = False

    def seen_before(self, facts: DeliveryFacts) -> bool:
        """Return whether the message has used up its requeues."""
        if self.name == "redelivered" or not facts.redelivered:
            return facts.redelivered  # at a first delivery a count is a publisher's, or copied from another queue
        if not facts.delivery_count and not facts.counts_failures:
            # The queue does not count (a classic one): one that does has counted this delivery. Dead-lettering early
            # is the preferred loss here: the other reading would requeue a message without end.
            return True
        return (facts.delivery_count or 0) >= self.max_requeues


def attempt_of(facts: DeliveryFacts, policy: SettlePolicy) -> tuple[int, int] | None:
    """Return which attempt at the message this is, and how many it has at most; None where that is not known."""
    if policy.name == "redelivered":
        return (2 if facts.redelivered else 1), 2
    most = policy.max_requeues + 1
    if not facts.redelivered:
        return 1, most
    if not facts.delivery_count and not facts.counts_failures:
        return None  # the queue does not count
    return min((facts.delivery_count or 0) + 1, most), most


_EXHAUSTED: Final[dict[OnExhausted, Disposition]] = {
    "move": Disposition.MOVE,
    "drop": Disposition.DROP,
    "dead_letter": Disposition.DEAD_LETTER,
}


def decide(verdict: Verdict, facts: DeliveryFacts, policy: SettlePolicy) -> Disposition:
    """Return what happens to a delivery with this verdict."""
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
