"""Schedule entries: the event and its times. Frozen, checked when built, the same on every host. Pure.

Times are milliseconds since the epoch internally and aware datetimes in the public API. No kind of ``when`` depends on
the moment a process started, so hosts agree on every due time without communication.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, TypeAlias, get_args

from conquiet.core.json_codec import CodecError, decode_payload, encode_payload
from conquiet.core.validation import require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError
from conquiet.processor.keys import keys_of
from conquiet.scheduler.cron import Cron

CatchUp: TypeAlias = Literal["skip", "one", "all"]

FIRE_LIMIT = 500
"""Most ticks of one entry that are fired in one step."""

MAX_DATA_BYTES = 1_000_000
"""Largest ``data`` of an entry, encoded; the envelope around it stays below a queue's default limit of 1 MiB."""

_MS = 1_000
_SHORTEST_S = 0.1
_LONGEST_S = 10 * 366 * 24 * 3600.0
_LONGEST_JITTER_S = 3600.0
_END_S = datetime(
    9999, 1, 1, tzinfo=UTC
).timestamp()  # a tick that is due then is fired later, at a time that must be a date too
_LONGEST_NAME = 180  # with "@" and a due time it is an id, and those have at most 200
_LONGEST_EVENT = 200
_FIRE_ID = re.compile(r".+@(\d{1,14})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval, counted from the epoch (or from ``anchor``) and so the same on every host.

    It measures elapsed time: clock changes do not affect it.

    Attributes:
        interval_s: Length of the interval, at least 0.1.
        anchor: One of the due times; the others lie whole intervals before and after it.
    """

    interval_s: float
    anchor: datetime = field(default=datetime.fromtimestamp(0, UTC), kw_only=True)

    def __post_init__(self) -> None:
        interval_s = require_seconds("interval_s", self.interval_s)
        if not _SHORTEST_S <= interval_s <= _LONGEST_S:
            raise ConfigurationError(f"interval_s must be between {_SHORTEST_S} and ten years, got {interval_s}")
        if abs(interval_s * _MS - round(interval_s * _MS)) > 1e-6:  # noqa: PLR2004 - noise of floats
            raise ConfigurationError("interval_s must be whole milliseconds")
        to_ms("anchor", self.anchor)

    @property
    def every_ms(self) -> int:
        """The interval in milliseconds."""
        return round(self.interval_s * _MS)

    @property
    def anchor_ms(self) -> int:
        """The anchor in milliseconds since the epoch."""
        return to_ms("anchor", self.anchor)

    def next_after(self, instant_ms: int) -> int:
        """Return the first due time after the given one."""
        return instant_ms + self.every_ms - (instant_ms - self.anchor_ms) % self.every_ms

    def count_between(self, after_ms: int, until_ms: int) -> int:
        """Return how many ticks lie in ``(after_ms, until_ms]``."""
        first, last = (after_ms - self.anchor_ms) // self.every_ms, (until_ms - self.anchor_ms) // self.every_ms
        return max(0, last - first)


@dataclass(frozen=True, slots=True)
class Once:
    """One moment.

    Attributes:
        at: The moment, a datetime with a time zone.
    """

    at: datetime

    def __post_init__(self) -> None:
        if to_ms("at", self.at) <= 0:
            raise ConfigurationError("at must lie after the first second of 1970")

    @property
    def at_ms(self) -> int:
        """The moment in milliseconds since the epoch."""
        return to_ms("at", self.at)

    def next_after(self, instant_ms: int) -> int | None:
        """Return the moment while it lies ahead, then None."""
        return self.at_ms if self.at_ms > instant_ms else None

    def count_between(self, after_ms: int, until_ms: int) -> int:
        """Return 1 if the moment lies in ``(after_ms, until_ms]``, else 0."""
        return int(after_ms < self.at_ms <= until_ms)


When: TypeAlias = Cron | Every | Once


class Origin(Enum):
    """The origin of an entry: the code of a program, or a call of ``add()`` at run time."""

    CODE = "code"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """An event to emit at given times.

    Attributes:
        name: Identifies the entry within its scheduler's group; part of every fire id.
        when: ``Cron``, ``Every`` or ``Once``.
        event: Event that is emitted.
        stream: Stream it is emitted to.
        data: Payload of the event: a JSON object.
        catch_up: Policy for ticks later than ``misfire_grace_s``. ``skip`` drops them, ``one`` fires the newest
            unless a punctual one fires now anyway, ``all`` fires them up to ``catch_up_limit``, newest kept.
            Dropped ticks are counted as missed.
        catch_up_limit: Most late ticks fired for ``all``.
        misfire_grace_s: A tick that is late by up to this much is punctual and fires under every policy.
        jitter_s: Each tick is delayed by up to this much, by the same amount on every host.
    """

    name: str
    when: When
    event: str
    stream: str
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    catch_up: CatchUp = field(default="one", kw_only=True)
    catch_up_limit: int = field(default=100, kw_only=True)
    misfire_grace_s: float = field(default=5.0, kw_only=True)
    jitter_s: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        require_text("name", self.name, most=_LONGEST_NAME)
        require_text("event", self.event, most=_LONGEST_EVENT)
        keys_of(self.stream)
        if not isinstance(self.when, Cron | Every | Once):
            raise ConfigurationError("when must be a Cron, an Every or a Once")
        # A copy, decoded as every reader will decode it: later changes by the caller have no effect.
        object.__setattr__(self, "data", _as_sent(self.data))
        if self.catch_up not in get_args(CatchUp):
            raise ConfigurationError('catch_up must be "skip", "one" or "all"')
        require_positive("catch_up_limit", self.catch_up_limit, most=FIRE_LIMIT)
        for setting in ("misfire_grace_s", "jitter_s"):
            if require_seconds(setting, getattr(self, setting), zero_allowed=True) > _LONGEST_JITTER_S:
                raise ConfigurationError(f"{setting} must be at most an hour")

    @property
    def misfire_grace_ms(self) -> int:
        """``misfire_grace_s`` in milliseconds."""
        return round(self.misfire_grace_s * _MS)

    @property
    def jitter_ms(self) -> int:
        """``jitter_s`` in milliseconds."""
        return round(self.jitter_s * _MS)

    def fire_id(self, due_ms: int) -> str:
        """Return the id of one fire: the same on every host, different for every tick."""
        return f"{self.name}@{due_ms}"

    def fire_at(self, due_ms: int) -> int:
        """Return when the tick due then is fired: its due time plus its share of the jitter.

        A digest replaces a random number, so that every host delays the tick equally.
        """
        if not self.jitter_ms:
            return due_ms
        digest = hashlib.blake2b(self.fire_id(due_ms).encode(), digest_size=8).digest()
        return due_ms + int.from_bytes(digest, "big") % (self.jitter_ms + 1)


def due_of(fire_id: str) -> datetime | None:
    """Return the due time in the id of a fired message, or None if the id is not of a scheduler.

    A handler learns from it which night its nightly report is about, however late it runs.
    """
    match = _FIRE_ID.fullmatch(fire_id)
    return None if match is None else from_ms(int(match[1]))


def _as_sent(data: object) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigurationError("data must be a mapping: it becomes a JSON object")
    try:
        return decode_payload(encode_payload(dict(data), max_bytes=MAX_DATA_BYTES), max_bytes=MAX_DATA_BYTES)
    except CodecError as error:
        raise ConfigurationError(f"data cannot be sent: {error.reason}") from error


def to_ms(setting: str, moment: object) -> int:
    """Return an aware datetime in milliseconds since the epoch."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise ConfigurationError(f"{setting} must be a datetime with a time zone, e.g. datetime(..., tzinfo=UTC)")
    if moment.timestamp() >= _END_S:
        raise ConfigurationError(f"{setting} must lie before the year 9999")
    return round(moment.timestamp() * _MS)


def from_ms(instant_ms: int) -> datetime:
    """Return the UTC datetime of milliseconds since the epoch."""
    return datetime.fromtimestamp(instant_ms / _MS, UTC)
