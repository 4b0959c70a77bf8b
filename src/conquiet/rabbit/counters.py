"""Count the outcomes of deliveries, in memory and in Prometheus. SPEC(004 §8).

The counters in memory start at zero for each consumer, and are used only in the event loop's thread.
"""

from dataclasses import asdict, dataclass, fields
from enum import Enum

from conquiet.metrics import registry
from conquiet.metrics.safety import count, set_gauge


class DeliveryOutcome(Enum):
    """The outcome of one delivery; the label ``outcome`` of ``conquiet_rabbit_messages_total``."""

    ACK = "ack"
    REQUEUED = "requeued"
    DEAD_LETTERED = "dead_lettered"
    DROPPED = "dropped"
    STALE = "stale"
    RELEASED = "released"
    ABANDONED = "abandoned"
    FATAL = "fatal"
    POSTPONED = "postponed"


@dataclass(slots=True)
class Counters:
    """The numbers of one consumer since it was created.

    Attributes:
        queued: Queue depth when the consumer started; None before.
        ack: Successfully processed.
        requeued: Failed and returned to the queue.
        dead_lettered: Failed, and sent to the dead-letter exchange or moved to ``<queue>.dead`` (or discarded, with
            ``without_dead_letters="discard"`` and no exchange).
        dropped: Past ``max_retries``, acknowledged without processing. Not a success, so not in ``ack``.
        stale: Finished too late: the channel was lost, and the broker delivers the message again.
        released: Received but not started when the consumer stopped, and returned to the queue.
        abandoned: Still running at the end of the grace period; the message returns to the queue.
        fatal: Broke the syncer's contract: left unsettled, or counted in ``dead_lettered`` too.
        postponed: Runs of the syncer without a result (``InfrastructureError``, ``Postpone``): the message runs again.
        reconnects: Connections after the first one.
    """

    queued: int | None = None
    ack: int = 0
    requeued: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    stale: int = 0
    released: int = 0
    abandoned: int = 0
    fatal: int = 0
    postponed: int = 0
    reconnects: int = 0

    @property
    def nack(self) -> int:
        """Rejected or retried: ``requeued + dead_lettered``."""
        return self.requeued + self.dead_lettered

    def as_dict(self) -> dict[str, int | None]:
        """Return every number by its name, including ``nack``."""
        return asdict(self) | {"nack": self.nack}


class DeliveryStats:
    """Counts in both a :class:`Counters` and Prometheus."""

    __slots__ = ("_children", "count", "queue")

    def __init__(self, queue: str) -> None:
        self.count = Counters()
        self.queue = queue
        # labels() takes a lock, so call it here and not for each message.
        self._children = {
            outcome: registry.RABBIT_MESSAGES_TOTAL.labels(queue, outcome.value) for outcome in DeliveryOutcome
        }

    def add(self, outcome: DeliveryOutcome, number: int = 1) -> None:
        """Count deliveries of one outcome."""
        setattr(self.count, outcome.value, getattr(self.count, outcome.value) + number)
        self._children[outcome].inc(number)

    def started(self, depth: int) -> None:
        """Record the queue depth at the start."""
        self.count.queued = depth
        set_gauge(registry.RABBIT_QUEUED_AT_START, self.queue, value=depth)

    def connection(self, event: str) -> None:
        """Count a connection event."""
        count(registry.RABBIT_CONNECTION_EVENTS_TOTAL, self.queue, event)


# An outcome without a field would fail at its first message. Fail at import instead.
assert {outcome.value for outcome in DeliveryOutcome} <= {field.name for field in fields(Counters)}  # noqa: S101
