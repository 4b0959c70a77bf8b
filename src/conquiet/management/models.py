"""Reports for operators: frozen, with ``as_dict`` for ``--json``.

Names are text for people. ``raw_…`` fields hold the bytes of Redis where a later command needs them: not every name is
UTF-8.
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
    """What is known about a consumer.

    LIVE has read recently. IDLE renews its liveness key and has not read for a while. DEAD has no key and has not read,
    and the server counts attempted reads. UNKNOWN is as DEAD, on a server that cannot prove it.
    """

    LIVE = "live"
    IDLE = "idle"
    UNKNOWN = "unknown"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class ConsumerReport(Report):
    """One consumer of a group.

    Attributes:
        idle_ms: Since its last read; before Redis 7.2, since its last read that returned entries. -1 for a live worker
            that has had no entry yet, which the server does not know as a consumer before Redis 7.2.
        state: Whether it is alive, as far as this is known.
    """

    name: str
    pending: int
    idle_ms: int
    state: ConsumerState

    @property
    def alive(self) -> bool:
        """True if it is known to be alive."""
        return self.state in {ConsumerState.LIVE, ConsumerState.IDLE}


@dataclass(frozen=True, slots=True)
class GroupReport(Report):
    """One consumer group.

    Attributes:
        lag: Entries not yet delivered; None if the server does not know.
        pending: Entries delivered and not acknowledged.
        oldest_age_s: Age of the oldest entry that is not done.
    """

    name: str
    lag: int | None
    pending: int
    last_delivered_id: str
    oldest_age_s: float | None
    consumers: tuple[ConsumerReport, ...]
    raw_name: bytes

    def with_pending(self, state: ConsumerState) -> tuple[ConsumerReport, ...]:
        """Return the consumers of that state that have entries pending."""
        return tuple(consumer for consumer in self.consumers if consumer.state is state and consumer.pending)


@dataclass(frozen=True, slots=True)
class StreamReport(Report):
    """One stream, its groups and consumers.

    Attributes:
        length: Entries, handled ones included.
        memory_bytes: None if this user may not read it.
        delayed: Delayed messages of the processor; None if the key beside the stream is not the processor's, or may not
            be read. The same holds for ``dead_letters`` and ``paused``.
        dead_letters: Dead letters of the processor.
        partitions: Streams that these figures are of, together; see ``PartitionedProcessor``.
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
    """The streams that were found.

    Attributes:
        complete: False if a limit ended the scan before all keys were seen.
    """

    streams: tuple[StreamReport, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class PendingReport(Report):
    """One entry that was delivered and is not acknowledged.

    Attributes:
        owner: Whether its owner is alive, as far as this is known; DEAD is proved.
        trimmed: The entry itself was deleted from the stream: there is nothing left to handle.
    """

    id: str
    consumer: str
    idle_ms: int
    deliveries: int
    owner: ConsumerState
    trimmed: bool


@dataclass(frozen=True, slots=True)
class ReclaimReport(Report):
    """What a reclaim claimed, or in a dry run would claim.

    Attributes:
        reset: Their delivery counts were set to 0.
    """

    ids: tuple[str, ...]
    owner: str
    dry_run: bool
    reset: bool = False


@dataclass(frozen=True, slots=True)
class RemovalReport(Report):
    """A consumer that was removed.

    Attributes:
        transferred: Entries it had pending, which belong to the new owner now.
    """

    consumer: str
    new_owner: str | None
    transferred: int


@dataclass(frozen=True, slots=True)
class TrimReport(Report):
    """What a trim removed.

    Attributes:
        below_id: Everything before this id was not needed by any group.
        removed: Entries removed; None on a dry run.
        length: Entries left.
    """

    below_id: str
    removed: int | None
    length: int
