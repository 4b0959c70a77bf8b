"""What an engine counts: gathered in plain numbers per message, handed to Prometheus per batch.

Four metric calls per message would cost more than the engine itself. Nothing is sampled or lost: the
totals are the same, a moment later.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from conquiet.metrics.registry import (
    QUEUE_MESSAGES_DELETED_TOTAL,
    QUEUE_MESSAGES_MALFORMED_TOTAL,
    RUNTIME_ACK_BATCH_SIZE,
    RUNTIME_CLAIMED_TOTAL,
    RUNTIME_EXHAUSTED_TOTAL,
    RUNTIME_FAILED_TOTAL,
    RUNTIME_GROUPS_RECREATED_TOTAL,
    RUNTIME_HANDED_BACK_TOTAL,
    RUNTIME_HANDLED_TOTAL,
    RUNTIME_HANDLING_SECONDS,
    RUNTIME_IN_HAND,
    RUNTIME_LEASES_LOST_TOTAL,
    RUNTIME_WAIT_SECONDS,
)
from conquiet.metrics.safety import never_raises


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """What one engine has done on one stream since its start.

    Attributes:
        read: Messages had from the server as new, or as its own from before; a lost reply's are had later, and count.
        succeeded: Handlers that succeeded.
        failed: Handlers that failed.
        claimed: Stale messages taken over.
    """

    read: int = 0
    succeeded: int = 0
    failed: int = 0
    claimed: int = 0


class StreamTally:
    """The numbers of one stream. Written on the event loop only."""

    __slots__ = (
        "_flushed_failed",
        "_flushed_in_hand",
        "_flushed_succeeded",
        "_handling",
        "_in_hand",
        "_stream",
        "_wait",
        "claimed",
        "failed",
        "handling_s",
        "read",
        "succeeded",
        "wait_s",
    )

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.read = self.succeeded = self.failed = self.claimed = 0
        self.handling_s: list[float] = []
        self.wait_s: list[float] = []
        self._flushed_succeeded = self._flushed_failed = self._flushed_in_hand = 0
        self._handling = RUNTIME_HANDLING_SECONDS.labels(stream)
        self._wait = RUNTIME_WAIT_SECONDS.labels(stream)
        self._in_hand = RUNTIME_IN_HAND.labels(stream)

    @property
    def counts(self) -> StreamCounts:
        """A copy to show."""
        return StreamCounts(read=self.read, succeeded=self.succeeded, failed=self.failed, claimed=self.claimed)

    def flush(self, in_hand: int) -> None:
        """Hand what has gathered to Prometheus."""
        if self.handling_s:  # each success and each failure has left its duration here
            _flush_counts(self._stream, self.succeeded - self._flushed_succeeded, self.failed - self._flushed_failed)
            self._flushed_succeeded, self._flushed_failed = self.succeeded, self.failed
            observe_many(self._handling, self.handling_s)
            self.handling_s.clear()
        if self.wait_s:
            observe_many(self._wait, self.wait_s)
            self.wait_s.clear()
        if in_hand != self._flushed_in_hand:
            # By the difference: several engines of a process may read one stream, each for a group of its own.
            self._in_hand.inc(in_hand - self._flushed_in_hand)
            self._flushed_in_hand = in_hand


@never_raises
def _flush_counts(stream: str, succeeded: int, failed: int) -> None:
    if succeeded:
        RUNTIME_HANDLED_TOTAL.labels(stream).inc(succeeded)
    if failed:
        RUNTIME_FAILED_TOTAL.labels(stream).inc(failed)


@never_raises
def observe_many(histogram: Any, values: list[float]) -> None:
    """The same as ``observe`` for each value, at a tenth of the price: each bucket is touched once.

    The attributes are prometheus_client's own and not public; a test compares the result with ``observe``.
    """
    bounds = histogram._upper_bounds  # noqa: SLF001
    counts = [0] * len(bounds)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    histogram._sum.inc(sum(values))  # noqa: SLF001
    for bucket, count in zip(histogram._buckets, counts, strict=True):  # noqa: SLF001
        if count:
            bucket.inc(count)


@never_raises
def observe_ack_batch(size: int) -> None:
    """Count one write of acknowledgements."""
    RUNTIME_ACK_BATCH_SIZE.observe(size)


@never_raises
def observe_claimed(stream: str, count: int) -> None:
    """Count stale messages taken over."""
    RUNTIME_CLAIMED_TOTAL.labels(stream).inc(count)


@never_raises
def observe_exhausted(stream: str) -> None:
    """Count a message that was not run because it had been delivered too often."""
    RUNTIME_EXHAUSTED_TOTAL.labels(stream).inc()


@never_raises
def observe_lease_lost(stream: str) -> None:
    """Count a message that somebody else holds now."""
    RUNTIME_LEASES_LOST_TOTAL.labels(stream).inc()


@never_raises
def observe_handed_back(stream: str, count: int) -> None:
    """Count messages given back unstarted."""
    RUNTIME_HANDED_BACK_TOTAL.labels(stream).inc(count)


@never_raises
def observe_group_recreated(stream: str) -> None:
    """Count a lost group that was built again."""
    RUNTIME_GROUPS_RECREATED_TOTAL.labels(stream).inc()


@never_raises
def observe_malformed(stream: str) -> None:
    """Count an entry that is no message."""
    QUEUE_MESSAGES_MALFORMED_TOTAL.labels(stream).inc()


@never_raises
def observe_deleted(stream: str, count: int) -> None:
    """Count pending entries that are not in their stream any more."""
    QUEUE_MESSAGES_DELETED_TOTAL.labels(stream).inc(count)
