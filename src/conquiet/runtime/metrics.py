"""Counters and pace of an engine: collected in plain numbers per message, passed to Prometheus periodically.

Four metric calls per message would cost more than the engine itself. Nothing is sampled or lost: the
totals are the same, a moment later.
"""

import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from conquiet.metrics.registry import (
    RUNTIME_FAILED_TOTAL,
    RUNTIME_HANDLED_TOTAL,
    RUNTIME_HANDLING_SECONDS,
    RUNTIME_IN_FLIGHT,
    RUNTIME_WAIT_SECONDS,
)
from conquiet.metrics.safety import count, never_raises
from conquiet.redis_transport.worker_reports import BUCKETS_S

_WEIGHT = 0.05


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """Counts of one engine for one stream since its start.

    Attributes:
        read: Messages received as new, or as pending for this consumer from before. Messages of a lost reply count
            when they are recovered.
        succeeded: Handlers that succeeded.
        failed: Handlers that failed.
        claimed: Stale messages that were claimed.
    """

    read: int = 0
    succeeded: int = 0
    failed: int = 0
    claimed: int = 0


class StreamStats:
    """The counters of one stream. Written on the event loop only."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.read = self.succeeded = self.failed = self.claimed = 0
        self.handling_s: list[float] = []
        self.wait_s: list[float] = []
        self._flushed_succeeded = self._flushed_failed = self._flushed_in_flight = 0
        self._handling = RUNTIME_HANDLING_SECONDS.labels(stream)
        self._wait = RUNTIME_WAIT_SECONDS.labels(stream)
        self._handling_counts = [0] * (len(BUCKETS_S) + 1)
        self._wait_counts = [0] * (len(BUCKETS_S) + 1)
        self._in_flight = RUNTIME_IN_FLIGHT.labels(stream)

    @property
    def counts(self) -> StreamCounts:
        """A snapshot of the counts."""
        return StreamCounts(read=self.read, succeeded=self.succeeded, failed=self.failed, claimed=self.claimed)

    def totals(self) -> dict[str, int]:
        """Return all counts so far, by their names in the worker history. Safe from another thread."""
        found = {"ok": self.succeeded, "failed": self.failed}
        found |= {f"h{at}": number for at, number in enumerate(self._handling_counts) if number}
        return found | {f"w{at}": number for at, number in enumerate(self._wait_counts) if number}

    def flush(self, in_flight: int) -> None:
        """Pass the collected values to Prometheus."""
        if self.handling_s:  # each success and each failure appends its duration
            count(RUNTIME_HANDLED_TOTAL, self._stream, n=self.succeeded - self._flushed_succeeded)
            count(RUNTIME_FAILED_TOTAL, self._stream, n=self.failed - self._flushed_failed)
            self._flushed_succeeded, self._flushed_failed = self.succeeded, self.failed
            observe_many(self._handling, self.handling_s, self._handling_counts)
            self.handling_s.clear()
        if self.wait_s:
            observe_many(self._wait, self.wait_s, self._wait_counts)
            self.wait_s.clear()
        if in_flight != self._flushed_in_flight:
            # Add the difference: several engines of a process may read one stream for different groups.
            self._in_flight.inc(in_flight - self._flushed_in_flight)
            self._flushed_in_flight = in_flight


class Pace:
    """The average handling time, which determines the prefetch.

    Attributes:
        average_s: Moving average of the handling time. It is 1,000 s until the first handler ends, so nothing is
            prefetched before that.
        last_end: When a handler last ended, on the monotonic clock.
    """

    __slots__ = ("average_s", "last_end")

    def __init__(self) -> None:
        self.average_s = 1_000.0
        self.last_end = time.monotonic()

    def record(self, began: float) -> float:
        """Record that a handler ended now. Return its duration."""
        self.last_end = now = time.monotonic()
        duration_s = now - began
        average_s = self.average_s
        self.average_s = duration_s if average_s == 1_000.0 else average_s + _WEIGHT * (duration_s - average_s)  # noqa: PLR2004
        return duration_s

    def record_many(self, began: float, number: int) -> float:
        """Record that ``number`` handlers that began together ended now. Return their duration."""
        duration_s = self.record(began)
        rest = (1.0 - _WEIGHT) ** (number - 1)
        self.average_s = duration_s + rest * (self.average_s - duration_s)
        return duration_s


def observe_many(histogram: Any, values: list[float], totals: list[int]) -> None:
    """Observe many values at a tenth of the cost of ``observe`` for each: every bucket is updated once.

    Args:
        histogram: A histogram with the buckets ``BUCKETS_S``, the default of prometheus_client.
        values: The values to observe.
        totals: Counts by bucket for the worker history. The values are added to them.
    """
    counts = [0] * (len(BUCKETS_S) + 1)
    for value in values:
        counts[bisect_left(BUCKETS_S, value)] += 1
    found = [(at, number) for at, number in enumerate(counts) if number]
    for at, number in found:
        totals[at] += number
    _add_to_buckets(histogram, found, sum(values))


@never_raises
def _add_to_buckets(histogram: Any, found: list[tuple[int, int]], total: float) -> None:
    # The attributes are private in prometheus_client. A test compares the result with ``observe``.
    histogram._sum.inc(total)  # noqa: SLF001
    for at, number in found:
        histogram._buckets[at].inc(number)  # noqa: SLF001
