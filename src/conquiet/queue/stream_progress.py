"""How far the housekeeping of one stream is, and when its next pass is due. No I/O."""

import random
from dataclasses import dataclass, field

from conquiet.metrics.outages import OutageWatch
from conquiet.queue.backlog_sampler import BacklogSampler
from conquiet.queue.retention import GrowthWatch, HeldBackWatch

_BUSY_LENGTH = 1_000
"""Entries from which on a stream is taken for a busy one."""
_LONGEST_PAUSE = 16
"""Intervals between two passes of a stream that has nothing to remove."""
_GAP_PAUSE_S = 30.0


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
        leased: We have held its lease.
        pause: Intervals until the next pass: more with each that has found nothing to remove.
        failures: Errors in a row.
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
    failures: int = 0
    outage: OutageWatch = field(default_factory=lambda: OutageWatch("Redis", "streams are neither read nor trimmed"))
    growth: GrowthWatch = field(default_factory=GrowthWatch)
    held_back: HeldBackWatch = field(default_factory=HeldBackWatch)

    @property
    def longest_pause(self) -> int:
        """Intervals until the next pass, if this one finds nothing to remove."""
        return min(2 * self.pause, _LONGEST_PAUSE)

    def schedule_next(self, now: float, interval_s: float, *, removed: bool) -> None:
        """Plan the next pass: soon after one that removed something, later if the stream is idle."""
        self.pause = 1 if removed else self.longest_pause
        self.next_at = now + self.pause * interval_s

    def schedule_while_held(self, now: float, lease_s: float, length: int, interval_s: float) -> None:
        """Plan the next pass while another host has the lease. Not the same for all: the first one then takes it."""
        # A host that stops releases its lease. Until that is noticed a busy stream grows, so it is asked for sooner.
        wait_s = lease_s if length < _BUSY_LENGTH else min(lease_s, interval_s / 2)
        self.next_at = now + wait_s + interval_s * random.random()  # noqa: S311

    def searched_gaps(self, cursor: str, removed: int, now: float) -> None:
        """Note a step in the gaps. A search reads entries, so one that found nothing is not repeated at once."""
        self.found_in_gaps += removed
        if cursor not in {"", "end"}:
            self.gaps_from = cursor
            return
        self.gaps_from = "0-0"
        if cursor == "end":
            self.gaps_at = now if self.found_in_gaps else now + _GAP_PAUSE_S
            self.found_in_gaps = 0
