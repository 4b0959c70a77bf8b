"""Is the engine really consuming? A picture of one moment, without a call to the server."""

from collections.abc import Mapping
from dataclasses import dataclass

from conquiet.kernel.lifecycle import Status
from conquiet.runtime.metrics import StreamCounts


@dataclass(frozen=True, slots=True)
class Health:
    """How an engine is doing.

    Attributes:
        status: Where its life stands.
        connected: Its reading connection is up.
        progress_age_s: Seconds since the server last answered a read, or, while there is no room for one, since a
            message was finished. On a cluster that of the reader which has waited longest.
        active: Handlers running.
        in_hand: Messages held: running, waiting for a slot, or not yet acknowledged.
        unacknowledged: Finished messages whose acknowledgement is not confirmed yet.
        lease_alive: The heartbeat's thread runs and its last extension was not too long ago.
        lag: Entries not yet delivered to the group, per stream, as of the last look; None if unknown.
        streams: What was done so far, per stream.
        reconnects: Attempts to get a lost connection back, so far.
    """

    status: Status
    connected: bool
    progress_age_s: float
    active: int
    in_hand: int
    unacknowledged: int
    lease_alive: bool
    lag: Mapping[str, int | None]
    streams: Mapping[str, StreamCounts]
    reconnects: int
    slots: int
    patience_s: float

    @property
    def ready(self) -> bool:
        """True only while the engine consumes: running, connected, leases alive, and reading or fully busy."""
        return (
            self.status is Status.RUNNING
            and self.connected
            and self.lease_alive
            and (self.progress_age_s <= self.patience_s or self.active >= self.slots)
        )


@dataclass(frozen=True, slots=True)
class StopReport:
    """What an engine did and what it left behind.

    Attributes:
        succeeded: Handlers that succeeded over its whole life.
        failed: Handlers that failed.
        handed_back: Unstarted messages given back to the group, uncharged, for anybody to take at once.
        stranded: Unstarted messages that could not be given back; they turn stale in time.
        abandoned: ``(stream, id)`` of messages whose handler was broken off, or still runs in a thread.
        unacknowledged: ``(stream, id)`` of finished messages whose acknowledgement was not confirmed: they
            will be delivered again.
        unanswered_reads: Reads whose answer was lost with its connection, or cut off by a forced stop, and was not
            looked for afterwards. What the server gave in it, if anything, is pending under our name; nobody has seen
            it, and it turns stale in time.
    """

    succeeded: int
    failed: int
    handed_back: int
    stranded: int
    abandoned: tuple[tuple[str, str], ...]
    unacknowledged: tuple[tuple[str, str], ...]
    unanswered_reads: int = 0


NOTHING_DONE = StopReport(succeeded=0, failed=0, handed_back=0, stranded=0, abandoned=(), unacknowledged=())
