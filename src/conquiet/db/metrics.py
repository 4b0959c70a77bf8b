"""Record writes and locks. No function here raises. SPEC(003 §5.9).

They keep the children of a metric, which ``metrics.safety.count`` finds again at every call: these are called for every
write.
"""

import time
from functools import lru_cache

from prometheus_client import Counter, Histogram

from conquiet.db.locking.strategy import LockStrategy
from conquiet.errors import NoSuchRowError
from conquiet.metrics.registry import (
    DB_LOCK_ACQUIRE_LATENCY_SECONDS,
    DB_LOCK_FAILURES_TOTAL,
    DB_WRITE_LATENCY_SECONDS,
    DB_WRITE_TOTAL,
)
from conquiet.metrics.safety import never_raises


@never_raises
def observe_db_write(table: str, op_type: str, status: str, latency_s: float) -> None:
    """Count one write by its outcome (``success`` or ``error``) and record how long it took."""
    _written(table, op_type, status).inc()
    _took(table, op_type).observe(latency_s)


@never_raises
def count_db_writes(table: str, op_type: str, status: str, rows: int) -> None:
    """Count writes; their time is recorded apart. No rows make no series."""
    if rows:
        _written(table, op_type, status).inc(rows)


@never_raises
def observe_db_latency(table: str, op_type: str, latency_s: float) -> None:
    """Record how long a write took, a batch as one write."""
    _took(table, op_type).observe(latency_s)


@never_raises
def observe_lock_acquisition(strategy: str, latency_s: float, success: bool) -> None:  # noqa: FBT001 - the seed's signature
    """Record how long a lock was waited for; count it if it was not acquired."""
    _waited(strategy).observe(latency_s)
    if not success:
        DB_LOCK_FAILURES_TOTAL.labels(strategy).inc()


class measured_lock:  # noqa: N801 - reads as a verb: with measured_lock(strategy): ...
    """Record how long the block waited for a lock, and count it if it was not acquired."""

    __slots__ = ("_started", "_strategy")

    def __init__(self, strategy: LockStrategy) -> None:
        self._strategy = strategy

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # A missing row is not a lock failure: there was no row to wait for.
        acquired = error is None or isinstance(error, NoSuchRowError)
        observe_lock_acquisition(self._strategy.value, time.monotonic() - self._started, acquired)


# labels() finds its child under a lock at every call; the child of a set of labels never changes.
@lru_cache(1_024)
def _written(table: str, op_type: str, status: str) -> Counter:
    return DB_WRITE_TOTAL.labels(table, op_type, status)


@lru_cache(1_024)
def _took(table: str, op_type: str) -> Histogram:
    return DB_WRITE_LATENCY_SECONDS.labels(table, op_type)


@lru_cache(64)
def _waited(strategy: str) -> Histogram:
    return DB_LOCK_ACQUIRE_LATENCY_SECONDS.labels(strategy)
