"""Decide how much of a stream is kept, and when to warn about a stream that grows."""

from dataclasses import dataclass
from typing import Final

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.core.validation import require_instance, require_positive, require_seconds

logger = FactLogger(__name__)

WARN_FROM: Final = 10_000
"""Least number of entries for a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention of entries that every group has acknowledged.

    An entry that is pending or undelivered in any group is always kept, and so is the last delivered entry.

    Attributes:
        keep_s: Entries younger than this stay, by the time in their ids and the server's clock. For groups that are
            created later and read history, and for people who inspect it. 0 keeps no entry because of its age.
        keep_min: Minimum number of entries to keep, the newest. Up to a node of the stream (100 entries) more may stay.
        interval_s: Time between two passes; up to 16 times as long for a stream that has nothing to remove for a while.
            A pass of a stream is one script call, two if there is something to remove.
    """

    keep_s: float = 0.0
    keep_min: int = 0
    interval_s: float = 0.5

    def __post_init__(self) -> None:
        require_seconds("keep_s", self.keep_s, zero_allowed=True)
        require_positive("keep_min", self.keep_min, zero_allowed=True)
        require_seconds("interval_s", self.interval_s)


def require_retention(value: object) -> None:
    """Raise ``ConfigurationError`` for anything but a ``Retention``, which has checked itself, or None."""
    if value is not None:
        require_instance("retention", value, Retention)


class GrowthWatch:
    """Detect a stream that only grows: it has no retention, and nothing else trims it."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._shrank = False
        self._warned = False

    def observe(self, done: int) -> bool:
        """Record how many entries every group is done with. Return True once, when a warning is due."""
        grew = self._last is not None and done > self._last
        self._shrank = self._shrank or (self._last is not None and done < self._last)
        self._last = done
        if self._warned or self._shrank or not grew or done < WARN_FROM:
            return False
        self._warned = True
        return True


def warn_of_growth(stream: str, done: int) -> None:
    """Log that a stream only grows."""
    logger.warning(
        "stream only grows: acknowledging removes nothing, and no retention is set. Run a StreamHousekeeper (see "
        "docs/housekeeping.md) or 'conquiet trim'",
        stream=printable(stream),
        entries_done=done,
    )


class HeldBackWatch:
    """Detect a stream that cannot be trimmed because one group does not advance.

    Args:
        warn_after_s: Time without progress of a group before the warning.
    """

    def __init__(self, warn_after_s: float = 600.0) -> None:
        self._warn_after_s = warn_after_s
        self._needed = ""
        self._since = 0.0
        self._warned = False

    def observe(self, needed: str, length: int, now: float) -> bool:
        """Record the oldest needed id and the length. Return True when a warning is due: once for each such id."""
        if needed != self._needed:
            self._needed, self._since, self._warned = needed, now, False
        if self._warned or length < WARN_FROM or now - self._since < self._warn_after_s:
            return False
        self._warned = True
        return True
