"""Reports for operators: frozen, with ``as_dict`` for ``--json``.

Names are readable text. ``raw_…`` fields hold the bytes of Redis for later commands, because a name need not be UTF-8.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Report:
    """Base of reports that can be printed as JSON."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts and lists."""
        return asdict(self, dict_factory=_without_raw)  # type: ignore[call-overload, no-any-return]


def _without_raw(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if not name.startswith("raw_")}


class ConsumerState(StrEnum):
    """Provable state of a consumer.

    LIVE has read recently. IDLE renews its liveness key and has not read for a while. DEAD has no key and has not read,
    and the server counts attempted reads. UNKNOWN is the same on a server that does not count attempted reads.
    """

    LIVE = "live"
    IDLE = "idle"
    UNKNOWN = "unknown"
    DEAD = "dead"

    @property
    def is_alive(self) -> bool:
        """True for a consumer that is known to be alive."""
        return self in {ConsumerState.LIVE, ConsumerState.IDLE}


@dataclass(frozen=True, slots=True)
class ConsumerReport(Report):
    """One consumer of a group.

    Attributes:
        idle_s: Seconds since its last read; before Redis 7.2, since its last read that returned entries. None for a
            live worker without an entry so far, which the server does not list as a consumer before Redis 7.2.
        state: Its provable state.
    """

    name: str
    pending: int
    idle_s: float | None
    state: ConsumerState

    @property
    def alive(self) -> bool:
        """True if it is known to be alive."""
        return self.state.is_alive


@dataclass(frozen=True, slots=True)
class GroupReport(Report):
    """One consumer group.

    Attributes:
        lag: Entries not yet delivered; None if the server does not know.
        pending: Entries delivered and not acknowledged.
        oldest_age_s: Age of the oldest entry that is not acknowledged.
    """

    name: str
    lag: int | None
    pending: int
    last_delivered_id: str
    oldest_age_s: float | None
    consumers: tuple[ConsumerReport, ...]
    raw_name: bytes

    def with_pending(self, state: ConsumerState) -> tuple[ConsumerReport, ...]:
        """Return the consumers in this state that have pending entries."""
        return tuple(consumer for consumer in self.consumers if consumer.state is state and consumer.pending)


@dataclass(frozen=True, slots=True)
class StreamReport(Report):
    """One stream, its groups and consumers.

    Attributes:
        length: Entries, handled ones included.
        memory_bytes: None if this user may not read it.
        delayed: Delayed messages of the processor; None if the key has another type, or this user may not read it. The
            same holds for ``dead_letters`` and ``paused``.
        dead_letters: Dead letters of the processor.
        partitions: Number of partitions, summed in these figures; see ``PartitionedProcessor``.
    """

    key: str
    length: int
    first_id: str | None
    last_id: str
    memory_bytes: int | None
    delayed: int | None
    dead_letters: int | None
    paused: tuple[str, ...] | None
    groups: tuple[GroupReport, ...]
    raw_key: bytes
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class StreamList(Report):
    """Result of a scan for streams.

    Attributes:
        complete: False if a limit ended the scan before all keys were seen.
    """

    streams: tuple[StreamReport, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class PendingReport(Report):
    """One entry that was delivered and is not acknowledged.

    Attributes:
        idle_s: Seconds since it was last delivered, claimed or renewed.
        owner: Provable state of its owner.
        trimmed: The entry was deleted from the stream, so it cannot be handled any more.
    """

    id: str
    consumer: str
    idle_s: float
    deliveries: int
    owner: ConsumerState
    trimmed: bool


@dataclass(frozen=True, slots=True)
class ReclaimReport(Report):
    """Entries that a reclaim claimed, or would claim without ``dry_run``.

    Attributes:
        reset: Their delivery counts were set to 0.
    """

    ids: tuple[str, ...]
    owner: str
    dry_run: bool
    reset: bool = False


@dataclass(frozen=True, slots=True)
class RemovalReport(Report):
    """Result of the removal of a consumer.

    Attributes:
        transferred: Pending entries that were transferred to the new owner.
    """

    consumer: str
    new_owner: str | None
    transferred: int


@dataclass(frozen=True, slots=True)
class TrimReport(Report):
    """Result of a trim.

    Attributes:
        below_id: No group needed an entry before this id.
        removed: Entries removed; None on a dry run.
        length: Entries left.
    """

    below_id: str
    removed: int | None
    length: int
