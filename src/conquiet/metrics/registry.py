"""Every Prometheus metric of conquiet, created in this one place. SPEC(003 §7).

Label values come from configuration (a table, a stream, a strategy), never from a message:
20,000 values of one histogram's label cost about 90 MiB.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from conquiet.errors import ConfigurationError
from conquiet.metrics.safety import never_raises

__all__ = ["get_or_create", "never_raises"]

M = TypeVar("M", Counter, Gauge, Histogram)


# How the processes of one worker are shown as one: prometheus_client's modes. Of dead processes nothing counts.
EACH_ITS_OWN = "livesum"
ALL_THE_SAME = "livemostrecent"  # what each of them reads off the same server


def get_or_create(
    kind: type[M],
    name: str,
    documentation: str,
    labels: Sequence[str],
    *,
    buckets: Sequence[float] | None = None,
    together: str | None = None,
) -> M:
    """Return the process-wide metric of that name, creating it at the first call.

    ``together`` says for a gauge what several processes make of it; counters and histograms are summed.

    prometheus_client refuses a second registration, which would make importing this module
    twice (a reload, a copy under another path) an error.
    """
    # There is no public look-up by name; this attribute has been there since 2015.
    existing = REGISTRY._names_to_collectors.get(name)  # noqa: SLF001
    if existing is None:
        options: dict[str, Any] = {} if buckets is None else {"buckets": buckets}
        if together is not None:
            options["multiprocess_mode"] = together
        return kind(name, documentation, labels, **options)
    if not isinstance(existing, kind) or tuple(existing._labelnames) != tuple(labels):  # noqa: SLF001
        raise ConfigurationError(f"metric {name} is registered already with another type or other labels")
    return existing


# ---------------------------------------------------------------- database room, SPEC(003 §5.9)
DB_WRITE_TOTAL = get_or_create(
    Counter, "conquiet_db_write_total", "Database writes by outcome", ["table", "op_type", "status"]
)
DB_WRITE_LATENCY_SECONDS = get_or_create(
    Histogram, "conquiet_db_write_latency_seconds", "Time of one database write, failed ones too", ["table", "op_type"]
)
DB_LOCK_ACQUIRE_LATENCY_SECONDS = get_or_create(
    Histogram, "conquiet_db_lock_acquire_latency_seconds", "Time spent waiting for a lock", ["strategy"]
)
DB_LOCK_FAILURES_TOTAL = get_or_create(
    Counter, "conquiet_db_lock_failures_total", "Locks that were not had", ["strategy"]
)
DB_DUPLICATE_INSERTS_TOTAL = get_or_create(
    Counter, "conquiet_db_duplicate_inserts_total", "Inserts whose row was there already", ["table"]
)

# ---------------------------------------------------------------- queue room, SPEC(001 §7)
QUEUE_MESSAGES_READ_TOTAL = get_or_create(
    Counter, "conquiet_queue_messages_read_total", "Messages read from the stream", ["stream"]
)
QUEUE_MESSAGES_ACK_TOTAL = get_or_create(
    Counter, "conquiet_queue_messages_ack_total", "Messages acknowledged", ["stream"]
)
QUEUE_MESSAGES_CLAIMED_TOTAL = get_or_create(
    Counter, "conquiet_queue_messages_claimed_total", "Stale messages claimed", ["stream"]
)
QUEUE_READ_LATENCY_SECONDS = get_or_create(
    Histogram, "conquiet_queue_read_latency_seconds", "Time of a read that returned messages", ["stream"]
)
QUEUE_MESSAGES_MALFORMED_TOTAL = get_or_create(
    Counter, "conquiet_queue_messages_malformed_total", "Entries refused because they break the format", ["stream"]
)
QUEUE_MESSAGES_DELETED_TOTAL = get_or_create(
    Counter, "conquiet_queue_messages_deleted_total", "Pending entries found deleted from their stream", ["stream"]
)
QUEUE_ACK_NOOP_TOTAL = get_or_create(
    Counter, "conquiet_queue_ack_noop_total", "Acknowledgements of entries that were not pending any more", ["stream"]
)

# ---------------------------------------------------------------- processor room
PROCESSOR_EMITTED_TOTAL = get_or_create(
    Counter, "conquiet_processor_emitted_total", "Messages emitted; duplicates were not", ["stream", "outcome"]
)
PROCESSOR_OUTCOMES_TOTAL = get_or_create(
    Counter,
    "conquiet_processor_outcomes_total",
    "Attempts by what became of the message",
    ["stream", "event", "outcome"],
)
PROCESSOR_TIMEOUTS_TOTAL = get_or_create(
    Counter, "conquiet_processor_timeouts_total", "Handlers that ran out of time", ["stream", "event", "kind"]
)
PROCESSOR_NOT_OURS_TOTAL = get_or_create(
    Counter,
    "conquiet_processor_not_ours_total",
    "Outcomes that were dropped because another host had the message by then",
    ["stream"],
)
PROCESSOR_SETTLE_REPEATS_TOTAL = get_or_create(
    Counter,
    "conquiet_processor_settle_repeats_total",
    "Retries and dead letters sent again after a lost reply",
    ["stream"],
)
PROCESSOR_MOVED_TOTAL = get_or_create(
    Counter, "conquiet_processor_moved_total", "Due messages this host moved to their stream", ["stream"]
)
PROCESSOR_MOVER_ERRORS_TOTAL = get_or_create(
    Counter, "conquiet_processor_mover_errors_total", "Looks for due messages that failed", ["stream"]
)
PROCESSOR_DELAYED = get_or_create(
    Gauge, "conquiet_processor_delayed", "Messages that wait for their time", ["stream"], together=ALL_THE_SAME
)
PROCESSOR_DEAD_LETTERS = get_or_create(
    Gauge, "conquiet_processor_dead_letters", "Dead letters kept", ["stream"], together=ALL_THE_SAME
)
PROCESSOR_DEAD_LETTER_AGE_SECONDS = get_or_create(
    Gauge,
    "conquiet_processor_dead_letter_age_seconds",
    "Age of the oldest dead letter",
    ["stream"],
    together=ALL_THE_SAME,
)
PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL = get_or_create(
    Counter, "conquiet_processor_dead_letters_expired_total", "Dead letters that fell to the retention", ["stream"]
)

# ---------------------------------------------------------------- runtime room, SPEC(002)
RUNTIME_IN_HAND = get_or_create(
    Gauge,
    "conquiet_runtime_in_hand",
    "Messages held and not yet acknowledged or given up",
    ["stream"],
    together=EACH_ITS_OWN,
)
RUNTIME_HANDLED_TOTAL = get_or_create(
    Counter, "conquiet_runtime_handled_total", "Messages whose handler succeeded", ["stream"]
)
RUNTIME_FAILED_TOTAL = get_or_create(
    Counter, "conquiet_runtime_failed_total", "Messages whose handler failed", ["stream"]
)
RUNTIME_HANDLING_SECONDS = get_or_create(
    Histogram, "conquiet_runtime_handling_seconds", "Time a handler took, failed ones too", ["stream"]
)
RUNTIME_WAIT_SECONDS = get_or_create(
    Histogram, "conquiet_runtime_wait_seconds", "From enqueue to the start of the first handling", ["stream"]
)
RUNTIME_CLAIMED_TOTAL = get_or_create(
    Counter, "conquiet_runtime_claimed_total", "Stale messages taken over", ["stream"]
)
RUNTIME_EXHAUSTED_TOTAL = get_or_create(
    Counter, "conquiet_runtime_exhausted_total", "Messages not run because of too many deliveries", ["stream"]
)
RUNTIME_LEASES_LOST_TOTAL = get_or_create(
    Counter, "conquiet_runtime_leases_lost_total", "Messages that somebody else holds now", ["stream"]
)
RUNTIME_HANDED_BACK_TOTAL = get_or_create(
    Counter, "conquiet_runtime_handed_back_total", "Messages given back unstarted at a stop", ["stream"]
)
RUNTIME_RECONNECTS_TOTAL = get_or_create(
    Counter, "conquiet_runtime_reconnects_total", "Attempts to get a lost connection back", ["connection"]
)
RUNTIME_GROUPS_RECREATED_TOTAL = get_or_create(
    Counter, "conquiet_runtime_groups_recreated_total", "Lost groups built again on request", ["stream"]
)
RUNTIME_ACK_BATCH_SIZE = get_or_create(
    Histogram,
    "conquiet_runtime_ack_batch_size",
    "Messages acknowledged by one write",
    [],
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
)

# ---------------------------------------------------------------- bridge room
INBOX_MESSAGES_TOTAL = get_or_create(
    Counter, "conquiet_inbox_messages_total", "Messages by what the inbox said of them", ["source", "outcome"]
)
FENCE_LEASE_LOST_TOTAL = get_or_create(
    Counter, "conquiet_fence_lease_lost_total", "Transactions rolled back because the lease was lost", ["source"]
)
OUTBOX_PUBLISHED_TOTAL = get_or_create(
    Counter, "conquiet_outbox_published_total", "Outbox rows published and removed", ["target"]
)
OUTBOX_REFUSED_TOTAL = get_or_create(
    Counter, "conquiet_outbox_refused_total", "Attempts to publish a row that its target refused", ["target"]
)
OUTBOX_PARKED_TOTAL = get_or_create(
    Counter, "conquiet_outbox_parked_total", "Outbox rows given up after too many refusals", ["target"]
)
OUTBOX_UNAVAILABLE_TOTAL = get_or_create(
    Counter, "conquiet_outbox_unavailable_total", "Batches put back because the target could not be reached", ["target"]
)
OUTBOX_LAG_SECONDS = get_or_create(
    Gauge,
    "conquiet_outbox_lag_seconds",
    "Age of the oldest due row at the relay's last look",
    ["target"],
    together=ALL_THE_SAME,
)
OUTBOX_DELIVERY_SECONDS = get_or_create(
    Histogram, "conquiet_outbox_delivery_seconds", "Time from writing a row to its publication", ["target"]
)

# ---------------------------------------------------------------- RabbitMQ room, SPEC(004 §8)
RABBIT_MESSAGES_TOTAL = get_or_create(
    Counter, "conquiet_rabbit_messages_total", "Deliveries by what became of them", ["queue", "outcome"]
)
RABBIT_CONNECTION_EVENTS_TOTAL = get_or_create(
    Counter, "conquiet_rabbit_connection_events_total", "Connections made, lost, blocked", ["queue", "event"]
)
RABBIT_QUEUED_AT_START = get_or_create(
    Gauge,
    "conquiet_rabbit_queued_at_start",
    "Queue depth when the consumer last started",
    ["queue"],
    together=ALL_THE_SAME,
)
RABBIT_PUBLISHED_TOTAL = get_or_create(
    Counter, "conquiet_rabbit_published_total", "Messages published, by the broker's answer", ["outcome"]
)

# ---------------------------------------------------------------- scheduler room
SCHEDULER_FIRED_TOTAL = get_or_create(Counter, "conquiet_scheduler_fired_total", "Ticks fired", ["stream"])
SCHEDULER_MISSED_TOTAL = get_or_create(
    Counter, "conquiet_scheduler_missed_total", "Late ticks dropped by the catch-up policy", ["stream"]
)
SCHEDULER_LATENESS_SECONDS = get_or_create(
    Histogram, "conquiet_scheduler_lateness_seconds", "Time from when a tick could be fired until it was", ["stream"]
)
SCHEDULER_ERRORS_TOTAL = get_or_create(
    Counter, "conquiet_scheduler_errors_total", "Rounds of a scheduler that got no answer from Redis", ["group"]
)
