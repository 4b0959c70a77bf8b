"""What the scheduler counts. Labels are streams: entries may be added at run time, one per customer."""

from conquiet.metrics.registry import (
    SCHEDULER_ERRORS_TOTAL,
    SCHEDULER_FIRED_TOTAL,
    SCHEDULER_LATENESS_SECONDS,
    SCHEDULER_MISSED_TOTAL,
    never_raises,
)


@never_raises
def observe_fire(stream: str, lateness_s: float) -> None:
    """Count one tick that was fired, and how late it was (jitter is not lateness)."""
    SCHEDULER_FIRED_TOTAL.labels(stream).inc()
    SCHEDULER_LATENESS_SECONDS.labels(stream).observe(max(0.0, lateness_s))


@never_raises
def observe_missed(stream: str, count: int) -> None:
    """Count ticks that are dropped by the policy of their entry. Each is counted by one host only."""
    SCHEDULER_MISSED_TOTAL.labels(stream).inc(count)


@never_raises
def observe_error(group: str) -> None:
    """Count one round that failed, or one stream of it that was refused."""
    SCHEDULER_ERRORS_TOTAL.labels(group).inc()
