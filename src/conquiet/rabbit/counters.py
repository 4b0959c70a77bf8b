"""What became of the deliveries, counted in memory and in Prometheus. SPEC(004 §8).

The counters in memory are what the seed asks for: they begin at zero with every consumer, and belong to the event
loop's thread.
"""

from dataclasses import asdict, dataclass, fields
from enum import Enum

from conquiet.metrics import registry


class Fate(Enum):
    """What became of one delivery; the label ``outcome`` of ``conquiet_rabbit_messages_total``."""

    ACK = "ack"
    REQUEUED = "requeued"
    DEAD_LETTERED = "dead_lettered"
    DROPPED = "dropped"
    STALE = "stale"
    HANDED_BACK = "handed_back"
    ABANDONED = "abandoned"
    FATAL = "fatal"


@dataclass(slots=True)
class Counters:
    """The numbers of one consumer since it was created.

    Attributes:
        queued: Queue depth when the consumer started, None before.
        ack: Successfully processed.
        requeued: Failed and put back.
        dead_lettered: Failed and given to the dead-letter exchange (or discarded, when the queue has none).
        dropped: Past ``max_retries``, acknowledged without processing. Not a success, so not in ``ack``.
        stale: Finished too late: their channel was gone and the broker has delivered them again.
        handed_back: Received but not started when the consumer stopped.
        abandoned: Still running when the grace period was over; they go back to the queue.
        fatal: Broke the syncer's contract: settled by nobody, or counted in ``dead_lettered`` too.
        reconnects: Connections made after the first.
    """

    queued: int | None = None
    ack: int = 0
    requeued: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    stale: int = 0
    handed_back: int = 0
    abandoned: int = 0
    fatal: int = 0
    reconnects: int = 0

    @property
    def nack(self) -> int:
        """Rejected or retried: ``requeued + dead_lettered``."""
        return self.requeued + self.dead_lettered

    def as_dict(self) -> dict[str, int | None]:
        """Every number by its name, ``nack`` included."""
        return asdict(self) | {"nack": self.nack}


class Tally:
    """Counts into a :class:`Counters` and into Prometheus at once."""

    __slots__ = ("_children", "_queue", "count")

    def __init__(self, queue: str) -> None:
        self.count = Counters()
        self._queue = queue
        # labels() is a look-up under a lock: done once here, not once a message.
        self._children = {fate: registry.RABBIT_MESSAGES_TOTAL.labels(queue, fate.value) for fate in Fate}

    def add(self, fate: Fate, number: int = 1) -> None:
        """Count deliveries of one fate."""
        setattr(self.count, fate.value, getattr(self.count, fate.value) + number)
        self._children[fate].inc(number)

    def started(self, depth: int) -> None:
        """Keep the queue depth found at the start."""
        self.count.queued = depth
        _observe_depth(self._queue, depth)

    def connection(self, event: str) -> None:
        """Count something that happened to the connection."""
        _observe_connection(self._queue, event)


@registry.never_raises
def _observe_depth(queue: str, depth: int) -> None:
    registry.RABBIT_QUEUED_AT_START.labels(queue).set(depth)


@registry.never_raises
def _observe_connection(queue: str, event: str) -> None:
    registry.RABBIT_CONNECTION_EVENTS_TOTAL.labels(queue, event).inc()


# A fate without a field of its own would fail at the first message; fail at import instead.
assert {fate.value for fate in Fate} <= {field.name for field in fields(Counters)}  # noqa: S101
