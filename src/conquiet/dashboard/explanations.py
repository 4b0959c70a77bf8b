"""What each number means and which command prints it: shown on hover, and read by a screen reader. Pure."""

from typing import Final

_TEXTS: Final = {
    "streams": ("Streams found on this Redis.", "conquiet inspect"),
    "length": ("Entries in the stream, done ones included.", "conquiet inspect {stream}"),
    "rate_in": ("Entries added per second, smoothed over a few seconds.", "conquiet inspect {stream}"),
    "rate_out": ("Entries acknowledged per second by all groups, smoothed.", "conquiet inspect {stream}"),
    "lag": ("Entries not delivered to the group that is furthest behind.", "conquiet inspect {stream}"),
    "oldest": ("Age of the oldest entry that some group is not done with.", "conquiet inspect {stream}"),
    "in_flight": ("Entries delivered to a worker and not acknowledged.", "conquiet pending {stream}"),
    "delayed": (
        "Messages that wait for the time of their first attempt.",
        "conquiet jobs list {stream} --state delayed",
    ),
    "dead": ("Messages that were given up.", "conquiet dead-letters list {stream}"),
    "workers": ("Consumers whose liveness key is alive.", "conquiet inspect {stream}"),
    "consumers": ("Names the group has, dead ones included.", "conquiet inspect {stream}"),
    "memory": ("Memory that the stream takes in Redis, estimated.", "conquiet inspect {stream} --json"),
    "idle": ("Time since the consumer last read, or since the entry was last delivered.", "conquiet pending {stream}"),
    "deliveries": ("How often the server has delivered the entry.", "conquiet pending {stream}"),
    "attempts": ("Attempts that were made.", "conquiet dead-letters show {stream} ID"),
    "p50": ("Half of the handlers took at most so long.", "conquiet_runtime_handling_seconds (metrics)"),
    "p95": ("95 of 100 handlers took at most so long.", "conquiet_runtime_handling_seconds (metrics)"),
    "handled": ("Attempts that succeeded in this time.", "conquiet_runtime_handled_total (metrics)"),
    "failed": ("Attempts that failed in this time.", "conquiet_runtime_failed_total (metrics)"),
    "dead_count": ("Dead letters of this cause among the newest ones.", "conquiet dead-letters groups {stream}"),
    "slots": ("Handlers running, of those that may run at once.", "conquiet worker --concurrency"),
    "lease": ("How long the worker counts as alive without a further sign.", "conquiet inspect {stream}"),
    "fired": ("Ticks fired so far, by all hosts.", "conquiet schedule list"),
    "missed": ("Ticks that were too late and dropped by the catch-up policy.", "conquiet schedule list"),
    "next_run": ("When it fires next.", "conquiet schedule next"),
    "inbox": ("Inbox rows: messages whose effect is committed.", "conquiet db status"),
    "outbox": ("Outbox rows that wait to be published.", "conquiet outbox list"),
    "parked": ("Outbox rows that their target refused too often.", "conquiet outbox parked"),
    "lock_wait": ("How long a connection waits for another's lock.", "conquiet doctor"),
    "ready": ("Messages that wait in the queue.", "rabbitmqctl list_queues"),
    "unacknowledged": ("Messages delivered and not settled.", "rabbitmqctl list_queues"),
    "queue_consumers": ("Consumers of the queue.", "rabbitmqctl list_queues"),
    "queue_rate": ("Messages per second, as the broker averages them.", "rabbitmqctl list_queues"),
    "queue_depth": ("Messages in the queue, ready and unacknowledged.", "rabbitmqctl list_queues"),
    "queue_in": ("Messages published to the queue.", "rabbitmqctl list_queues"),
    "queue_out": ("Messages acknowledged by consumers.", "rabbitmqctl list_queues"),
    "matched": ("Dead letters that the filter matches.", "conquiet dead-letters replay {stream} --dry-run"),
    "done": ("Dead letters replayed or discarded so far.", "conquiet dead-letters replay {stream}"),
    "jobs": ("Jobs in this state.", "conquiet jobs list {stream}"),
    "attempt": ("The attempt that is next or under way.", "conquiet jobs show {stream} ID"),
    "attempt_duration": ("How long the handler ran in this attempt.", "conquiet jobs show {stream} ID"),
    "retrying": (
        "Messages that wait for a further attempt, of the delayed ones; of many, the first are looked at.",
        "conquiet jobs list {stream} --phase retrying",
    ),
    "age": ("Time since it was emitted.", "conquiet jobs list {stream}"),
}


def explain(name: str, stream: str = "STREAM") -> str:
    """Return what a number means, and the command that prints it."""
    meaning, command = _TEXTS[name]
    return f"{meaning} Printed by: {command.format(stream=stream)}"
