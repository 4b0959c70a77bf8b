"""The state of an engine at one moment, without a call to the server."""

from collections.abc import Mapping
from dataclasses import dataclass

from conquiet.core.lifecycle import Status
from conquiet.runtime.metrics import StreamCounts


@dataclass(frozen=True, slots=True)
class Health:
    """The state of an engine.

    Attributes:
        status: Where its life stands.
        connected: Its reading connection is up.
        progress_age_s: Seconds since the server last replied to a read, or, while there is no capacity for one, since a
            message was finished. On a cluster that of the reader which has waited longest.
        active: Handlers running.
        in_flight: Messages held: running, waiting for a slot, or not yet acknowledged.
        unacknowledged: Finished messages whose acknowledgement is not confirmed yet.
        lease_alive: The heartbeat's thread runs and its last extension was not too long ago.
        lag: Entries not yet delivered to the group, per stream, as of the last poll; None if unknown.
        streams: What was done so far, per stream.
        reconnects: Attempts to get a lost connection back, so far.
        paused: A server that the handler needs is unavailable, so nothing but a probe is fetched.
    """

    status: Status
    connected: bool
    progress_age_s: float
    active: int
    in_flight: int
    unacknowledged: int
    lease_alive: bool
    lag: Mapping[str, int | None]
    streams: Mapping[str, StreamCounts]
    reconnects: int
    slots: int
    patience_s: float
    paused: bool = False

    @property
    def ready(self) -> bool:
        """True only while the engine consumes: running, not paused, connected, leases alive, reading or fully busy."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why it is not ready; empty while it is."""
        reasons = {
            "not started": self.status is Status.NEW,
            "stopping or stopped": self.status in {Status.STOPPING, Status.STOPPED},
            "a server that the handler needs is unavailable": self.paused,
            "not connected to Redis": not self.connected,
            "leases are not extended": not self.lease_alive,
            f"no progress for {self.progress_age_s:.0f} s": (
                self.progress_age_s > self.patience_s and self.active < self.slots
            ),
        }
        return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass(frozen=True, slots=True)
class StopReport:
    """What an engine did and what it left behind.

    Attributes:
        succeeded: Handlers that succeeded over its whole life.
        failed: Handlers that failed.
        released: Unstarted messages returned to the group, uncharged, for every consumer to claim at once.
        unreleased: Unstarted messages that could not be released; they turn stale in time.
        abandoned: ``(stream, id)`` of messages whose handler was cancelled, or still runs in a thread.
        unacknowledged: ``(stream, id)`` of finished messages whose acknowledgement was not confirmed: they
            will be delivered again.
        unanswered_reads: Reads whose answer was lost with its connection, or aborted by a forced stop, and was not
            searched for afterwards. Its entries, if any, are pending under our name, were not started, and turn stale
            in time.
    """

    succeeded: int
    failed: int
    released: int
    unreleased: int
    abandoned: tuple[tuple[str, str], ...]
    unacknowledged: tuple[tuple[str, str], ...]
    unanswered_reads: int = 0


NOT_STARTED = Health(
    status=Status.NEW,
    connected=False,
    progress_age_s=0.0,
    active=0,
    in_flight=0,
    unacknowledged=0,
    lease_alive=False,
    lag={},
    streams={},
    reconnects=0,
    slots=0,
    patience_s=0.0,
)
NOTHING_DONE = StopReport(succeeded=0, failed=0, released=0, unreleased=0, abandoned=(), unacknowledged=())
