"""The state of an engine at one moment, without a call to the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conquiet.core.lifecycle import Health, Status
from conquiet.runtime.metrics import StreamCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth(Health):
    """The health of an engine, with its figures. ``reason`` follows from them. The defaults: it was not started.

    Attributes:
        connected: The reading connection is open.
        progress_age_s: Seconds since the server last replied to a read, or, while there is no capacity to read, since a
            message was finished. On a cluster: the maximum over all readers.
        active: Handlers running.
        in_flight: Messages held: running, waiting for a worker, or not yet acknowledged.
        unacknowledged: Finished messages without a confirmed acknowledgement.
        lease_alive: The heartbeat thread runs and its last extension is recent enough.
        lag: Entries not yet delivered to the group, per stream, as of the last poll; None if unknown.
        streams: Counts since the start, per stream.
        reconnects: Reconnect attempts so far.
        concurrency: Maximum number of concurrent handlers.
        progress_timeout_s: Without progress for this long, an engine with free workers is not ready.
        paused: A server that the handler needs is unavailable, so nothing but a probe is fetched.
    """

    reason: str = field(default="", init=False)
    handled: int = 0
    connected: bool = False
    progress_age_s: float = 0.0
    active: int = 0
    in_flight: int = 0
    unacknowledged: int = 0
    lease_alive: bool = False
    lag: Mapping[str, int | None] = field(default_factory=dict)
    streams: Mapping[str, StreamCounts] = field(default_factory=dict)
    reconnects: int = 0
    concurrency: int = 0
    progress_timeout_s: float = 0.0
    paused: bool = False

    def __post_init__(self) -> None:
        problems = {
            "a server that the handler needs is unavailable": self.paused,
            "not connected to Redis": not self.connected,
            "leases are not extended": not self.lease_alive,
            f"no progress for {self.progress_age_s:.0f} s": (
                self.progress_age_s > self.progress_timeout_s and self.active < self.concurrency
            ),
        }
        object.__setattr__(self, "reason", next((problem for problem, holds in problems.items() if holds), ""))
        Health.__post_init__(self)


@dataclass(frozen=True, slots=True)
class StopReport:
    """Totals of an engine, and the messages it could not finish.

    Attributes:
        succeeded: Handlers that succeeded since the start.
        failed: Handlers that failed.
        released: Unstarted messages returned to the group, uncharged. Any consumer can claim them immediately.
        unreleased: Unstarted messages that could not be released. They can be claimed once they are stale.
        abandoned: ``(stream, id)`` of messages with a handler that was cancelled, or still runs in a thread.
        unacknowledged: ``(stream, id)`` of finished messages without a confirmed acknowledgement: they will be
            delivered again.
        unanswered_reads: Reads that lost their reply with the connection or through a forced stop, and were not
            recovered afterwards. Their entries, if any, were not started. They are pending for this consumer and can
            be claimed once they are stale.
    """

    succeeded: int
    failed: int
    released: int
    unreleased: int
    abandoned: tuple[tuple[str, str], ...]
    unacknowledged: tuple[tuple[str, str], ...]
    unanswered_reads: int = 0


NOT_STARTED = EngineHealth(status=Status.NEW)
NOTHING_DONE = StopReport(succeeded=0, failed=0, released=0, unreleased=0, abandoned=(), unacknowledged=())
