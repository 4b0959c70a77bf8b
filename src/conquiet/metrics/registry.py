"""All Prometheus metrics of conquiet. SPEC(003 §7).

Label values come from configuration (a table, a stream, a strategy), never from a message:
20,000 values of one histogram label cost about 90 MiB.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from conquiet.errors import ConfigurationError

M = TypeVar("M", Counter, Gauge, Histogram)


# Modes of prometheus_client for a gauge over several processes. Ended processes do not count.
SUM_OF_PROCESSES = "livesum"
LATEST_OF_PROCESSES = "livemostrecent"  # each process reads the same value from the same server


def get_or_create(kind: type[M], name: str, documentation: str, labels: Sequence[str], **options: Any) -> M:
    """Return the process-wide metric of this name. The first call creates it, with the options of its kind.

    prometheus_client rejects a second registration, so importing this module twice (a reload, a copy under another
    path) would fail without this function.
    """
    # prometheus_client has no public lookup by name. This attribute has existed since 2015.
    existing = REGISTRY._names_to_collectors.get(name)  # noqa: SLF001
    if existing is None:
        return kind(name, documentation, labels, **options)
    if not isinstance(existing, kind) or tuple(existing._labelnames) != tuple(labels):  # noqa: SLF001
        raise ConfigurationError(f"metric {name} is registered already with another type or other labels")
    return existing


def _counter(name: str, documentation: str, *labels: str) -> Counter:
    return get_or_create(Counter, name, documentation, labels)


def _histogram(name: str, documentation: str, *labels: str, **options: Any) -> Histogram:
    return get_or_create(Histogram, name, documentation, labels, **options)


def _gauge(name: str, documentation: str, *labels: str, mode: str = LATEST_OF_PROCESSES) -> Gauge:
    """Return a gauge. ``mode`` determines how it combines several processes; counters and histograms are summed."""
    return get_or_create(Gauge, name, documentation, labels, multiprocess_mode=mode)


# ---------------------------------------------------------------- database, SPEC(003 §5.9)
DB_WRITE_TOTAL = _counter("conquiet_db_write_total", "Database writes by outcome", "table", "op_type", "status")
DB_WRITE_LATENCY_SECONDS = _histogram(
    "conquiet_db_write_latency_seconds", "Time of one database write, including failed writes", "table", "op_type"
)
DB_LOCK_ACQUIRE_LATENCY_SECONDS = _histogram(
    "conquiet_db_lock_acquire_latency_seconds", "Time spent waiting for a lock", "strategy"
)
DB_LOCK_FAILURES_TOTAL = _counter("conquiet_db_lock_failures_total", "Locks that could not be acquired", "strategy")
DB_DUPLICATE_INSERTS_TOTAL = _counter(
    "conquiet_db_duplicate_inserts_total", "Inserts of a row that existed already", "table"
)

# ---------------------------------------------------------------- queue, SPEC(001 §7)
QUEUE_MESSAGES_READ_TOTAL = _counter("conquiet_queue_messages_read_total", "Messages read from the stream", "stream")
QUEUE_MESSAGES_ACK_TOTAL = _counter("conquiet_queue_messages_ack_total", "Messages acknowledged", "stream")
QUEUE_MESSAGES_CLAIMED_TOTAL = _counter("conquiet_queue_messages_claimed_total", "Stale messages claimed", "stream")
QUEUE_READ_LATENCY_SECONDS = _histogram(
    "conquiet_queue_read_latency_seconds", "Time of a read that returned messages", "stream"
)
QUEUE_MESSAGES_ENQUEUED_TOTAL = _counter(
    "conquiet_queue_messages_enqueued_total", "Payloads that a stream accepted from this process", "stream"
)
QUEUE_MESSAGES_RECOVERED_TOTAL = _counter(
    "conquiet_queue_messages_recovered_total", "Pending messages of this consumer read again", "stream"
)
QUEUE_MESSAGES_MALFORMED_TOTAL = _counter("conquiet_queue_messages_malformed_total", "Malformed entries", "stream")
QUEUE_MESSAGES_DELETED_TOTAL = _counter(
    "conquiet_queue_messages_deleted_total", "Pending entries found deleted from their stream", "stream"
)
QUEUE_ACK_NOOP_TOTAL = _counter(
    "conquiet_queue_ack_noop_total", "Acknowledgements of entries that were not pending", "stream"
)

QUEUE_ENTRIES_TRIMMED_TOTAL = _counter(
    "conquiet_queue_entries_trimmed_total",
    "Entries that every group had acknowledged, removed by this process",
    "stream",
)
QUEUE_CONSUMERS_REMOVED_TOTAL = _counter(
    "conquiet_queue_consumers_removed_total", "Consumers of ended processes removed by this process", "stream"
)
QUEUE_HOUSEKEEPING_ERRORS_TOTAL = _counter(
    "conquiet_queue_housekeeping_errors_total", "Passes of the housekeeping that failed", "stream"
)

# ---------------------------------------------------------------- streams, sampled by one host at a time
STREAM_LENGTH = _gauge("conquiet_stream_length", "Entries in the stream", "stream")
STREAM_LAG = _gauge("conquiet_stream_lag", "Entries not yet delivered to the group; NaN if unknown", "stream", "group")
STREAM_PENDING = _gauge("conquiet_stream_pending", "Entries delivered and not acknowledged", "stream", "group")
STREAM_OLDEST_WAITING_SECONDS = _gauge(
    "conquiet_stream_oldest_waiting_seconds",
    "Age of the oldest entry not yet delivered to the group",
    "stream",
    "group",
)
STREAM_DELAYED = _gauge("conquiet_stream_delayed", "Messages that are not due yet", "stream")
STREAM_DEAD_LETTERS = _gauge("conquiet_stream_dead_letters", "Dead letters of the stream", "stream")
STREAM_SAMPLES_TOTAL = _counter("conquiet_stream_samples_total", "Samples of the stream taken here", "stream")

# ---------------------------------------------------------------- processor
PROCESSOR_EMITTED_TOTAL = _counter(
    "conquiet_processor_emitted_total", "Messages emitted, by outcome", "stream", "outcome"
)
PROCESSOR_OUTCOMES_TOTAL = _counter(
    "conquiet_processor_outcomes_total", "Attempts by the outcome of the message", "stream", "event", "outcome"
)
PROCESSOR_TIMEOUTS_TOTAL = _counter(
    "conquiet_processor_timeouts_total", "Handlers that exceeded their timeout", "stream", "event", "kind"
)
PROCESSOR_OWNERSHIP_LOST_TOTAL = _counter(
    "conquiet_processor_ownership_lost_total",
    "Outcomes without effect, because another consumer owned the message",
    "stream",
)
PROCESSOR_SETTLE_REPEATS_TOTAL = _counter(
    "conquiet_processor_settle_repeats_total", "Retries and dead letters sent again after a lost reply", "stream"
)
PROCESSOR_PROMOTED_TOTAL = _counter(
    "conquiet_processor_promoted_total", "Due messages that this process moved to their stream", "stream"
)
PROCESSOR_PROMOTION_ERRORS_TOTAL = _counter(
    "conquiet_processor_promotion_errors_total", "Failed polls for due messages", "stream"
)
PROCESSOR_DELAYED = _gauge("conquiet_processor_delayed", "Delayed messages", "stream")
PROCESSOR_DEAD_LETTERS = _gauge("conquiet_processor_dead_letters", "Dead letters kept", "stream")
PROCESSOR_DEAD_LETTER_AGE_SECONDS = _gauge(
    "conquiet_processor_dead_letter_age_seconds", "Age of the oldest dead letter", "stream"
)
PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL = _counter(
    "conquiet_processor_dead_letters_expired_total", "Dead letters removed by the retention", "stream"
)

# ---------------------------------------------------------------- runtime, SPEC(002)
RUNTIME_IN_FLIGHT = _gauge(
    "conquiet_runtime_in_flight", "Messages in flight: delivered and not yet settled", "stream", mode=SUM_OF_PROCESSES
)
RUNTIME_HANDLED_TOTAL = _counter("conquiet_runtime_handled_total", "Messages handled successfully", "stream")
RUNTIME_FAILED_TOTAL = _counter("conquiet_runtime_failed_total", "Messages with a failed handler", "stream")
RUNTIME_HANDLING_SECONDS = _histogram(
    "conquiet_runtime_handling_seconds", "Duration of a handler, including failed ones", "stream"
)
RUNTIME_WAIT_SECONDS = _histogram(
    "conquiet_runtime_wait_seconds", "From enqueue to the start of the first handling", "stream"
)
RUNTIME_CLAIMED_TOTAL = _counter("conquiet_runtime_claimed_total", "Stale messages claimed", "stream")
RUNTIME_EXHAUSTED_TOTAL = _counter(
    "conquiet_runtime_exhausted_total", "Messages not run because of too many deliveries", "stream"
)
RUNTIME_LEASES_LOST_TOTAL = _counter(
    "conquiet_runtime_leases_lost_total", "Messages that another consumer claimed", "stream"
)
RUNTIME_RELEASED_TOTAL = _counter(
    "conquiet_runtime_released_total", "Messages released uncharged at a stop or an outage", "stream"
)
RUNTIME_RECONNECTS_TOTAL = _counter("conquiet_runtime_reconnects_total", "Attempts to reconnect", "connection")
RUNTIME_GROUPS_RECREATED_TOTAL = _counter("conquiet_runtime_groups_recreated_total", "Lost groups recreated", "stream")
RUNTIME_OUTAGES_TOTAL = _counter(
    "conquiet_runtime_outages_total", "Pauses because a server that the handler needs is unavailable", "group"
)
RUNTIME_ACK_BATCH_SIZE = _histogram(
    "conquiet_runtime_ack_batch_size",
    "Messages acknowledged by one write",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
)

# ---------------------------------------------------------------- transactional
INBOX_MESSAGES_TOTAL = _counter(
    "conquiet_inbox_messages_total", "Messages by the inbox's decision", "source", "outcome"
)
INBOX_PURGED_TOTAL = _counter("conquiet_inbox_purged_total", "Inbox rows deleted because of their age", "table")
OUTBOX_PURGED_TOTAL = _counter(
    "conquiet_outbox_purged_total", "Parked outbox rows deleted because of their age", "table"
)
PURGE_ERRORS_TOTAL = _counter("conquiet_purge_errors_total", "Passes of a purger that failed")
LEASE_CHECK_ROLLBACKS_TOTAL = _counter(
    "conquiet_lease_check_rollbacks_total", "Transactions rolled back because the lease was lost", "source"
)
OUTBOX_PUBLISHED_TOTAL = _counter("conquiet_outbox_published_total", "Outbox rows published and removed", "target")
OUTBOX_REFUSED_TOTAL = _counter(
    "conquiet_outbox_refused_total", "Attempts to publish a row that its target refused", "target"
)
OUTBOX_PARKED_TOTAL = _counter("conquiet_outbox_parked_total", "Outbox rows parked after too many refusals", "target")
OUTBOX_UNAVAILABLE_TOTAL = _counter(
    "conquiet_outbox_unavailable_total", "Batches released because the target could not be reached", "target"
)
OUTBOX_LAG_SECONDS = _gauge(
    "conquiet_outbox_lag_seconds", "Age of the oldest due row at the relay's last poll", "target"
)
OUTBOX_UNSERVED_SECONDS = _gauge(
    "conquiet_outbox_unserved_seconds",
    "Age of the oldest overdue row with a target that the relay does not serve",
    "table",
)
OUTBOX_DELIVERY_SECONDS = _histogram(
    "conquiet_outbox_delivery_seconds", "Time from writing a row to its publication", "target"
)

# ---------------------------------------------------------------- servers
SERVER_OUTAGES_TOTAL = _counter("conquiet_server_outages_total", "Times that a server became unavailable", "server")
SERVER_FAILED_ATTEMPTS_TOTAL = _counter(
    "conquiet_server_failed_attempts_total", "Calls of a server that failed because it is unavailable", "server"
)

# ---------------------------------------------------------------- RabbitMQ, SPEC(004 §8)
RABBIT_MESSAGES_TOTAL = _counter("conquiet_rabbit_messages_total", "Deliveries by outcome", "queue", "outcome")
RABBIT_CONNECTION_EVENTS_TOTAL = _counter(
    "conquiet_rabbit_connection_events_total", "Connections opened, lost, blocked", "queue", "event"
)
RABBIT_QUEUED_AT_START = _gauge(
    "conquiet_rabbit_queued_at_start", "Queue depth when the consumer last started", "queue"
)
RABBIT_PUBLISHED_TOTAL = _counter(
    "conquiet_rabbit_published_total", "Messages published, by the broker's confirm", "outcome"
)

# ---------------------------------------------------------------- scheduler
SCHEDULER_FIRED_TOTAL = _counter("conquiet_scheduler_fired_total", "Ticks fired", "stream")
SCHEDULER_MISSED_TOTAL = _counter(
    "conquiet_scheduler_missed_total", "Late ticks dropped by the catch-up policy", "stream"
)
SCHEDULER_LATENESS_SECONDS = _histogram(
    "conquiet_scheduler_lateness_seconds", "Time from when a tick was due until it was fired", "stream"
)
SCHEDULER_ERRORS_TOTAL = _counter(
    "conquiet_scheduler_errors_total", "Scheduler iterations that got no reply from Redis", "group"
)
