"""Counting writes and locks. None of these raises. SPEC(003 §5.9)."""

from conquiet.metrics.registry import (
    DB_DUPLICATE_INSERTS_TOTAL,
    DB_LOCK_ACQUIRE_LATENCY_SECONDS,
    DB_LOCK_FAILURES_TOTAL,
    DB_WRITE_LATENCY_SECONDS,
    DB_WRITE_TOTAL,
    never_raises,
)


@never_raises
def observe_db_write(table: str, op_type: str, status: str, latency_s: float) -> None:
    """Count one write by its outcome (``success`` or ``error``) and record how long it took."""
    DB_WRITE_TOTAL.labels(table, op_type, status).inc()
    DB_WRITE_LATENCY_SECONDS.labels(table, op_type).observe(latency_s)


@never_raises
def observe_lock_acquisition(strategy: str, latency_s: float, success: bool) -> None:  # noqa: FBT001 - the seed's signature
    """Record how long a lock was waited for; count it if it was not had."""
    DB_LOCK_ACQUIRE_LATENCY_SECONDS.labels(strategy).observe(latency_s)
    if not success:
        DB_LOCK_FAILURES_TOTAL.labels(strategy).inc()


@never_raises
def observe_duplicate(table: str) -> None:
    """Count an INSERT whose row was there already."""
    DB_DUPLICATE_INSERTS_TOTAL.labels(table).inc()
