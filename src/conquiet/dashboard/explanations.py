"""Explain each number and name the command that prints it, for tooltips and screen readers. Pure."""

from typing import Final

_TEXTS: Final = {
    "streams": ("Streams found on this Redis.", "conquiet inspect"),
    "length": ("Entries in the stream, acknowledged ones included.", "conquiet inspect {stream}"),
    "rate_in": ("Entries added per second, smoothed over a few seconds.", "conquiet inspect {stream}"),
    "rate_out": ("Entries acknowledged per second by all groups, smoothed.", "conquiet inspect {stream}"),
    "lag": ("Entries not delivered to the group that is furthest behind.", "conquiet inspect {stream}"),
    "oldest": ("Age of the oldest entry that some group has not acknowledged.", "conquiet inspect {stream}"),
    "in_flight": ("Entries delivered to a worker and not acknowledged.", "conquiet pending {stream} GROUP"),
    "delayed": (
        "Messages that wait for the time of their first attempt.",
        "conquiet jobs list {stream} --phase delayed",
    ),
    "dead": ("Dead letters: messages that will not be retried.", "conquiet dead-letters list {stream}"),
    "workers": ("Consumers with a liveness key.", "conquiet inspect {stream}"),
    "consumers": ("Consumers of the group, dead ones included.", "conquiet inspect {stream}"),
    "memory": ("Estimated memory of the stream in Redis.", "conquiet inspect {stream} --json"),
    "idle": (
        "Time since the consumer last read, or since the entry was last delivered.",
        "conquiet pending {stream} GROUP",
    ),
    "deliveries": ("How often the server has delivered the entry.", "conquiet pending {stream} GROUP"),
    "attempts": ("Attempts that were made.", "conquiet dead-letters show {stream} ID"),
    "p50": ("Half of the handlers took at most this long.", "conquiet_runtime_handling_seconds (metrics)"),
    "p95": ("95 of 100 handlers took at most this long.", "conquiet_runtime_handling_seconds (metrics)"),
    "handled": ("Attempts that succeeded in this time.", "conquiet_runtime_handled_total (metrics)"),
    "failed": ("Attempts that failed in this time.", "conquiet_runtime_failed_total (metrics)"),
    "dead_count": ("Dead letters of this cause among the newest ones.", "conquiet dead-letters causes {stream}"),
    "concurrency": ("Running handlers, and how many may run concurrently.", "conquiet worker --concurrency"),
    "lease": ("Time until the liveness key of the worker expires.", "conquiet inspect {stream}"),
    "fired": ("Ticks fired so far, by all hosts.", "conquiet schedule list"),
    "missed": ("Ticks that were too late and dropped by the catch-up policy.", "conquiet schedule list"),
    "next_run": ("Next time that it fires.", "conquiet schedule next"),
    "inbox": ("Inbox rows: messages with a committed effect.", "conquiet db status"),
    "outbox": ("Outbox rows that wait to be published.", "conquiet outbox list"),
    "parked": ("Outbox rows that failed too often.", "conquiet outbox parked"),
    "lock_wait": ("How long a connection waits for another's lock.", "conquiet doctor"),
    "ready": ("Messages that wait in the queue.", "rabbitmqctl list_queues"),
    "unacknowledged": ("Messages delivered and not settled.", "rabbitmqctl list_queues"),
    "queue_consumers": ("Consumers of the queue.", "rabbitmqctl list_queues"),
    "queue_rate": ("Messages per second, averaged by the broker.", "rabbitmqctl list_queues"),
    "queue_depth": ("Messages in the queue, ready and unacknowledged.", "rabbitmqctl list_queues"),
    "queue_in": ("Messages published to the queue.", "rabbitmqctl list_queues"),
    "queue_out": ("Messages acknowledged by consumers.", "rabbitmqctl list_queues"),
    "matched": ("Dead letters that the filter matches.", "conquiet dead-letters replay {stream} --dry-run"),
    "done": ("Dead letters replayed or discarded so far.", "conquiet dead-letters replay {stream}"),
    "jobs": ("Jobs in this state.", "conquiet jobs list {stream}"),
    "attempt": ("The attempt that is next or under way.", "conquiet jobs show {stream} ID"),
    "attempt_duration": ("How long the handler ran in this attempt.", "conquiet jobs show {stream} ID"),
    "retrying": (
        "Delayed messages that wait for a further attempt; of many, only the first are counted.",
        "conquiet jobs list {stream} --phase retrying",
    ),
    "age": ("Time since it was emitted.", "conquiet jobs list {stream}"),
}


def explain(name: str, stream: str = "STREAM") -> str:
    """Return the meaning of a number and the command that prints it."""
    meaning, command = _TEXTS[name]
    return f"{meaning} Printed by: {command.format(stream=stream)}"
