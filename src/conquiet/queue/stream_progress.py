"""Progress of the housekeeping of one stream, and the time of its next pass. No I/O."""

import random
from dataclasses import dataclass, field

from conquiet.metrics.outages import OutageWatch
from conquiet.queue.backlog_sampler import BacklogSampler
from conquiet.queue.retention import GrowthWatch, HeldBackWatch

_BUSY_LENGTH = 1_000
"""Length from which a stream counts as busy."""
_LONGEST_PAUSE = 16
"""Intervals between two passes of a stream that has nothing to remove, and no group with anything to do."""
_BUSY_PAUSE = 2
"""The same, while a group has something to do: entries it is done with are removed within a second."""
_LEASE_SPARE_MS = 3_000
_GAP_PAUSE_S = 30.0


def lease_ms(pause: int, interval_s: float) -> int:
    """Return the lease of a host that makes its next pass after at most ``pause`` intervals."""
    return _LEASE_SPARE_MS + round(pause * interval_s * 1_000)


def longest_lease_ms(interval_s: float) -> int:
    """Return the longest lease of a host that passes often enough for a stream with traffic."""
    return lease_ms(_BUSY_PAUSE, interval_s)


@dataclass(slots=True)
class StreamProgress:
    """Progress on one stream.

    Attributes:
        next_at: Time of the next pass, on the monotonic clock.
        names_at: Time of the next removal of names.
        sampler: Sets the gauges of the stream.
        gaps_from: Id from which the gaps between pending entries are searched on.
        gaps_at: Time of the next search in them.
        found_in_gaps: Entries that the current search has removed.
        leased: True if this host has held its lease, or the lease of its group's names.
        pause: Intervals until the next pass; it grows with each pass that removes nothing.
        most: Upper bound of ``pause``.
        is_quiet: The next pass, by any host, is further away than a stream with traffic needs.
        messages_read: Messages that this process had read from it at the last check.
        has_traffic: True if messages were read since the last pass.
        failures: Consecutive errors.
        outage: Logs that the server is unavailable.
    """

    next_at: float
    names_at: float
    sampler: BacklogSampler
    gaps_from: str = "0-0"
    gaps_at: float = 0.0
    found_in_gaps: int = 0
    leased: bool = False
    pause: int = 1
    most: int = _LONGEST_PAUSE
    is_quiet: bool = False
    messages_read: int = 0
    has_traffic: bool = False
    failures: int = 0
    outage: OutageWatch = field(default_factory=lambda: OutageWatch("Redis", "streams are neither read nor trimmed"))
    growth: GrowthWatch = field(default_factory=GrowthWatch)
    held_back: HeldBackWatch = field(default_factory=HeldBackWatch)

    @property
    def longest_pause(self) -> int:
        """Intervals until the next pass, if this one finds nothing to remove."""
        return min(2 * self.pause, self.most)

    def observe_reads(self, messages_read: int) -> None:
        """Record how many messages this process has read so far."""
        self.has_traffic = self.has_traffic or messages_read != self.messages_read
        self.messages_read = messages_read

    def is_due(self, now: float) -> bool:
        """Return whether to pass now: it is time, or a quiet stream has traffic again."""
        return now >= self.next_at or (self.is_quiet and self.has_traffic)

    def begin_pass(self) -> bool:
        """Return whether there was traffic since the last pass. If so, the next pass is soon."""
        had_traffic, self.has_traffic = self.has_traffic, False
        if had_traffic:
            self.pause = 1
        return had_traffic

    def schedule_next(self, now: float, interval_s: float, *, removed: bool, undone: int = 0) -> None:
        """Plan the next pass: soon after a pass that removed something, later if the stream is idle."""
        pause = 1 if removed else self.longest_pause
        self.most = _BUSY_PAUSE if undone else _LONGEST_PAUSE
        self.pause = min(pause, self.most)
        self.is_quiet = self.pause > _BUSY_PAUSE
        self.next_at = now + self.pause * interval_s

    def schedule_while_held(self, now: float, lease_s: float, length: int, interval_s: float) -> None:
        """Plan the next pass while another host has the lease. Spread over hosts: the first one takes the lease."""
        # A host that stops releases its lease. A busy stream grows until another host notices, so it tries sooner.
        wait_s = lease_s if length < _BUSY_LENGTH else min(lease_s, interval_s / 2)
        self.is_quiet = lease_s * 1_000 > longest_lease_ms(interval_s)
        self.next_at = now + wait_s + interval_s * random.random()  # noqa: S311

    def schedule_after_failure(self, now: float, wait_s: float) -> None:
        """Plan the next attempt after an error; traffic makes it no sooner."""
        self.is_quiet = False
        self.next_at = now + wait_s
        self.names_at = max(self.names_at, self.next_at)
        self.sampler.next_at = max(self.sampler.next_at, self.next_at)

    def searched_gaps(self, cursor: str, removed: int, now: float) -> None:
        """Record a step in the gaps. A search reads entries, so after a search without a result the next one waits."""
        self.found_in_gaps += removed
        if cursor not in {"", "end"}:
            self.gaps_from = cursor
            return
        self.gaps_from = "0-0"
        if cursor == "end":
            self.gaps_at = now if self.found_in_gaps else now + _GAP_PAUSE_S
            self.found_in_gaps = 0
