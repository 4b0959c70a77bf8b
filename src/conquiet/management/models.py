"""What an operator is told. Plain facts, frozen; ``as_dict`` is what ``--json`` prints.

Names are text, fit to be shown. What Redis calls them is kept as ``raw_…`` where a command may have to
name them again: not every name is UTF-8.
"""

from dataclasses import asdict, dataclass
from typing import Any


class Facts:
    """Base of what can be printed as JSON."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain dicts and lists."""
        return asdict(self, dict_factory=_without_raw)  # type: ignore[call-overload, no-any-return]


def _without_raw(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if not name.startswith("raw_")}


@dataclass(frozen=True, slots=True)
class ConsumerFacts(Facts):
    """One name inside a group.

    Attributes:
        alive: It asked the server for something within the time an operator calls alive.
        idle_ms: Since it last asked.
    """

    name: str
    pending: int
    idle_ms: int
    alive: bool


@dataclass(frozen=True, slots=True)
class GroupFacts(Facts):
    """One consumer group.

    Attributes:
        lag: Entries not yet delivered; None where the server lost count.
        pending: Entries delivered and not acknowledged.
        oldest_age_s: Age of the oldest entry that is not done.
    """

    name: str
    lag: int | None
    pending: int
    last_delivered_id: str
    oldest_age_s: float | None
    consumers: tuple[ConsumerFacts, ...]
    raw_name: bytes

    @property
    def dead_with_work(self) -> tuple[ConsumerFacts, ...]:
        """Consumers that are gone and left entries pending."""
        return tuple(consumer for consumer in self.consumers if not consumer.alive and consumer.pending)


@dataclass(frozen=True, slots=True)
class StreamFacts(Facts):
    """One stream with all that belongs to it.

    Attributes:
        length: Entries, handled ones included.
        memory_bytes: None if this user may not ask for it.
        delayed: Messages of the processor that wait for their time; None if the key beside the stream is not the
            processor's, or may not be asked. So with ``dead_letters`` and ``paused``.
        dead_letters: Messages of the processor that were given up.
    """

    key: str
    length: int
    first_id: str | None
    last_id: str
    memory_bytes: int | None
    delayed: int | None
    dead_letters: int | None
    paused: tuple[str, ...] | None
    groups: tuple[GroupFacts, ...]
    raw_key: bytes


@dataclass(frozen=True, slots=True)
class StreamList(Facts):
    """The streams that were found.

    Attributes:
        complete: False if the look was ended by its limit before all keys were seen.
    """

    streams: tuple[StreamFacts, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class PendingFacts(Facts):
    """One entry that was delivered and is not acknowledged.

    Attributes:
        ghost: Its owner is not alive.
        trimmed: The entry itself was deleted from the stream: there is nothing left to handle.
    """

    id: str
    consumer: str
    idle_ms: int
    deliveries: int
    ghost: bool
    trimmed: bool


@dataclass(frozen=True, slots=True)
class Reclaimed(Facts):
    """What a reclaim took over, or would take over."""

    ids: tuple[str, ...]
    owner: str
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Retired(Facts):
    """A consumer that is no more.

    Attributes:
        handed_over: Entries it had pending, which belong to the heir now.
    """

    consumer: str
    heir: str | None
    handed_over: int


@dataclass(frozen=True, slots=True)
class Trimmed(Facts):
    """What a trim removed.

    Attributes:
        below_id: Everything before this id was not needed by any group.
        removed: Entries removed; None on a dry run.
        length: Entries left.
    """

    below_id: str
    removed: int | None
    length: int
