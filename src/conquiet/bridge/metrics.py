"""Counting what the bridge does. None of these raises."""

from conquiet.metrics.registry import (
    FENCE_LEASE_LOST_TOTAL,
    INBOX_MESSAGES_TOTAL,
    OUTBOX_DELIVERY_SECONDS,
    OUTBOX_LAG_SECONDS,
    OUTBOX_PARKED_TOTAL,
    OUTBOX_PUBLISHED_TOTAL,
    OUTBOX_REFUSED_TOTAL,
    OUTBOX_UNAVAILABLE_TOTAL,
    never_raises,
)


@never_raises
def observe_inbox(source: str, outcome: str) -> None:
    """Count one message by what the inbox said: ``first``, ``duplicate`` or ``conflict``."""
    INBOX_MESSAGES_TOTAL.labels(source, outcome).inc()


@never_raises
def observe_lease_lost(source: str) -> None:
    """Count a transaction that was rolled back because its message was not ours any more."""
    FENCE_LEASE_LOST_TOTAL.labels(source).inc()


@never_raises
def observe_published(target: str, ages_s: list[float]) -> None:
    """Count published rows and record how long each has waited since it was written."""
    OUTBOX_PUBLISHED_TOTAL.labels(target).inc(len(ages_s))
    histogram = OUTBOX_DELIVERY_SECONDS.labels(target)
    for age_s in ages_s:
        histogram.observe(age_s)


@never_raises
def observe_refused(target: str, refused: int, parked: int) -> None:
    """Count rows that the target refused, and those of them that were given up."""
    OUTBOX_REFUSED_TOTAL.labels(target).inc(refused)
    OUTBOX_PARKED_TOTAL.labels(target).inc(parked)


@never_raises
def observe_unavailable(target: str) -> None:
    """Count a batch that was put back because its target could not be reached."""
    OUTBOX_UNAVAILABLE_TOTAL.labels(target).inc()


@never_raises
def observe_lag(target: str, lag_s: float) -> None:
    """Record the age of the oldest row that is due."""
    OUTBOX_LAG_SECONDS.labels(target).set(lag_s)
