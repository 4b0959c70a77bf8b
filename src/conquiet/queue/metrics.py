"""What the queue counts. SPEC(003 §6.3). Called after Redis has answered; none of these raises."""

from conquiet.metrics.registry import (
    QUEUE_ACK_NOOP_TOTAL,
    QUEUE_MESSAGES_ACK_TOTAL,
    QUEUE_MESSAGES_CLAIMED_TOTAL,
    QUEUE_MESSAGES_DELETED_TOTAL,
    QUEUE_MESSAGES_MALFORMED_TOTAL,
    QUEUE_MESSAGES_READ_TOTAL,
    QUEUE_READ_LATENCY_SECONDS,
    never_raises,
)


@never_raises
def observe_queue_read(stream: str, count: int, latency_s: float) -> None:
    """Count messages that were read, and the time of the read that brought them."""
    QUEUE_MESSAGES_READ_TOTAL.labels(stream).inc(count)
    QUEUE_READ_LATENCY_SECONDS.labels(stream).observe(latency_s)


@never_raises
def observe_queue_ack(stream: str) -> None:
    """Count one message that was pending and is acknowledged now."""
    QUEUE_MESSAGES_ACK_TOTAL.labels(stream).inc()


@never_raises
def observe_queue_ack_noop(stream: str) -> None:
    """Count an acknowledgement that found nothing pending: done before, or claimed and done by another."""
    QUEUE_ACK_NOOP_TOTAL.labels(stream).inc()


@never_raises
def observe_queue_claim(stream: str, claimed_count: int) -> None:
    """Count stale messages that were claimed."""
    QUEUE_MESSAGES_CLAIMED_TOTAL.labels(stream).inc(claimed_count)


@never_raises
def observe_queue_malformed(stream: str, count: int) -> None:
    """Count entries that break the format."""
    QUEUE_MESSAGES_MALFORMED_TOTAL.labels(stream).inc(count)


@never_raises
def observe_queue_deleted(stream: str, count: int) -> None:
    """Count pending entries whose content was deleted from the stream."""
    QUEUE_MESSAGES_DELETED_TOTAL.labels(stream).inc(count)
