"""What the queue counts. SPEC(003 §6.3). Called after Redis has answered; none of these raises.

The registry is imported with the first queue and not with this module: Prometheus takes 30 ms to
import, a fifth of what the whole room does.
"""

import functools
from typing import TYPE_CHECKING, NamedTuple

from conquiet.metrics.safety import never_raises

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram


class _Meters(NamedTuple):
    """The metrics of one stream, looked up once: a look-up by label costs as much as counting."""

    read: "Counter"
    read_latency: "Histogram"
    acked: "Counter"
    ack_noop: "Counter"
    claimed: "Counter"
    malformed: "Counter"
    deleted: "Counter"


@functools.cache
def _meters(stream: str) -> _Meters:
    from conquiet.metrics import registry

    return _Meters(
        read=registry.QUEUE_MESSAGES_READ_TOTAL.labels(stream),
        read_latency=registry.QUEUE_READ_LATENCY_SECONDS.labels(stream),
        acked=registry.QUEUE_MESSAGES_ACK_TOTAL.labels(stream),
        ack_noop=registry.QUEUE_ACK_NOOP_TOTAL.labels(stream),
        claimed=registry.QUEUE_MESSAGES_CLAIMED_TOTAL.labels(stream),
        malformed=registry.QUEUE_MESSAGES_MALFORMED_TOTAL.labels(stream),
        deleted=registry.QUEUE_MESSAGES_DELETED_TOTAL.labels(stream),
    )


@never_raises
def prepare_queue_metrics(stream: str) -> None:
    """Create the stream's metrics, so that they are scraped as zero before anything happens."""
    _meters(stream)


@never_raises
def observe_queue_read(stream: str, count: int, latency_s: float) -> None:
    """Count messages that were read, and the time of the read that brought them."""
    meters = _meters(stream)
    meters.read.inc(count)
    meters.read_latency.observe(latency_s)


@never_raises
def observe_queue_ack(stream: str) -> None:
    """Count one message that was pending and is acknowledged now."""
    _meters(stream).acked.inc()


@never_raises
def observe_queue_ack_noop(stream: str) -> None:
    """Count an acknowledgement that found nothing pending: done before, or claimed and done by another."""
    _meters(stream).ack_noop.inc()


@never_raises
def observe_queue_claim(stream: str, claimed_count: int) -> None:
    """Count stale messages that were claimed."""
    _meters(stream).claimed.inc(claimed_count)


@never_raises
def observe_queue_malformed(stream: str, count: int) -> None:
    """Count entries that break the format."""
    _meters(stream).malformed.inc(count)


@never_raises
def observe_queue_deleted(stream: str, count: int) -> None:
    """Count pending entries whose content was deleted from the stream."""
    _meters(stream).deleted.inc(count)
