"""What happens to a delivery: one table, one function, no I/O. SPEC(004 §4, §5).

    verdict                        first time       seen before
    ─────────────────────────────  ───────────────  ───────────────────────────────
    Done                           ACK              ACK
    Refused, Unreadable            REQUEUE          DEAD_LETTER
    Exhausted (x-death)            DROP, or DEAD_LETTER with exhausted="dead_letter"
    ContractBroken, KeyFault       STOP             STOP, with poison_guard: DEAD_LETTER_AND_STOP (once a process)

"Seen before" is the policy's word. ``redelivered`` takes the broker's flag, which means *perhaps* delivered before: one
crash marks everything that was in the prefetch window. ``delivery_count`` takes the quorum queue's own count, where the
queue can have written it: the headers are anybody's to write.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, assert_never

from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.decrypt import KeyFault
from conquiet.rabbit.syncer import ContractBroken, Done, Refused

PolicyName = Literal["redelivered", "delivery_count"]
OnExhausted = Literal["drop", "dead_letter"]


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The retry count exceeds ``max_retries``; the message was not looked at."""


Verdict = Done | Refused | Unreadable | Exhausted | ContractBroken | KeyFault


class Settlement(Enum):
    """What can happen to a delivery. There is nothing else."""

    ACK = "ack"
    DROP = "drop"  # acknowledged without having been processed
    REQUEUE = "requeue"
    DEAD_LETTER = "dead_letter"
    STOP = "stop"  # settled by nobody: it goes back to the queue when the channel closes
    DEAD_LETTER_AND_STOP = "dead_letter_and_stop"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the broker says about a delivery.

    Attributes:
        redelivered: The flag of the delivery.
        delivery_count: ``x-delivery-count``, None where the queue does not count.
        counts_failures: Whether the queue counts failures alone, and says how often it gave the message to anybody
            beside it (``x-acquired-count``, RabbitMQ 4.3): no failure is then as good an answer as any.
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

    def seen_before(self, facts: Facts) -> bool:
        """Tell whether the message has used up its requeues."""
        if self.name == "redelivered" or not facts.redelivered:
            return facts.redelivered  # at a first delivery a count is a publisher's, or copied from another queue
        if not facts.delivery_count and not facts.counts_failures:
            # The queue does not count (a classic one): one that does has counted this delivery. Dead-lettering early
            # is the preferred loss here: the other reading would put a message back for ever.
            return True
        return (facts.delivery_count or 0) >= self.max_requeues


def decide(verdict: Verdict, facts: Facts, policy: SettlePolicy) -> Settlement:
    """Return what happens to a delivery with this verdict."""
    match verdict:
        case Done():
            return Settlement.ACK
        case Refused() | Unreadable():
            return Settlement.DEAD_LETTER if policy.seen_before(facts) else Settlement.REQUEUE
        case Exhausted():
            return Settlement.DROP if policy.exhausted == "drop" else Settlement.DEAD_LETTER
        case ContractBroken() | KeyFault():
            guarded = policy.poison_guard and policy.seen_before(facts)
            return Settlement.DEAD_LETTER_AND_STOP if guarded else Settlement.STOP
        case _:
            assert_never(verdict)
