"""Metrics of the queue. SPEC(003 §6.3). Recorded after the reply of Redis; none of these functions raises."""

import functools
from typing import Any

from conquiet.metrics import registry
from conquiet.metrics.safety import never_raises


@functools.cache
def _metrics(stream: str) -> dict[str, Any]:
    """Return the metrics of one stream, found once: finding one by its label costs as much as counting."""
    return {
        "read": registry.QUEUE_MESSAGES_READ_TOTAL.labels(stream),
        "read_latency": registry.QUEUE_READ_LATENCY_SECONDS.labels(stream),
        "acked": registry.QUEUE_MESSAGES_ACK_TOTAL.labels(stream),
        "ack_noop": registry.QUEUE_ACK_NOOP_TOTAL.labels(stream),
        "claimed": registry.QUEUE_MESSAGES_CLAIMED_TOTAL.labels(stream),
        "enqueued": registry.QUEUE_MESSAGES_ENQUEUED_TOTAL.labels(stream),
        "recovered": registry.QUEUE_MESSAGES_RECOVERED_TOTAL.labels(stream),
        "malformed": registry.QUEUE_MESSAGES_MALFORMED_TOTAL.labels(stream),
        "deleted": registry.QUEUE_MESSAGES_DELETED_TOTAL.labels(stream),
    }


@never_raises
def prepare_queue_metrics(stream: str) -> None:
    """Create the stream's metrics, so that they are scraped as zero from the start."""
    _metrics(stream)


@never_raises
def count_queue(stream: str, what: str, count: int = 1) -> None:
    """Add to one of the counters: ``acked``, ``enqueued``, ``recovered``, ``malformed``, ``deleted``, ``ack_noop``."""
    _metrics(stream)[what].inc(count)


@never_raises
def observe_queue_read(stream: str, count: int, latency_s: float) -> None:
    """Count messages that were read, and the duration of the read. SPEC(003 §6.3)."""
    metrics = _metrics(stream)
    metrics["read"].inc(count)
    metrics["read_latency"].observe(latency_s)


@never_raises
def observe_queue_ack(stream: str) -> None:
    """Count a message that was pending and is acknowledged now. SPEC(003 §6.3)."""
    _metrics(stream)["acked"].inc()


@never_raises
def observe_queue_claim(stream: str, claimed_count: int) -> None:
    """Count stale messages that were claimed. SPEC(003 §6.3)."""
    _metrics(stream)["claimed"].inc(claimed_count)
