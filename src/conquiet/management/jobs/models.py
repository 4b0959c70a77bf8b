"""Filters and reports of jobs. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from conquiet.core.validation import require_seconds, require_text
from conquiet.management.models import Report


class JobPhase(StrEnum):
    """Phase of a job.

    WAITING is in the stream and was not delivered to the group. DELAYED waits for its first attempt, RETRYING for a
    further attempt. RUNNING was delivered to a worker and is not settled; it may wait in the worker's prefetch. BEHIND
    waits for earlier messages of its key (docs/ordering.md). PARKED waits for the end of a pause of its event. DEAD is
    a dead letter. SUCCEEDED and CANCELLED have ended: they are known from the recorded state or the cancellation, and
    cannot be listed.
    """

    WAITING = "waiting"
    BEHIND = "behind"
    DELAYED = "delayed"
    RUNNING = "running"
    RETRYING = "retrying"
    PARKED = "parked"
    DEAD = "dead"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"


LISTED = tuple(phase for phase in JobPhase if phase not in {JobPhase.SUCCEEDED, JobPhase.CANCELLED})
"""The phases that can be listed."""


class BulkAction(StrEnum):
    """Change of each job, by ``JobAdmin.bulk``."""

    CANCEL = "cancel"
    RUN_NOW = "run-now"
    RESCHEDULE = "reschedule"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class JobAttempt(Report):
    """One attempt of a job.

    Attributes:
        attempt: Its number, from 1.
        ended_ms: End in milliseconds since the epoch; 0 if unknown.
        duration_s: Run time of the handler; None if unknown.
        error_type: Class of its error; empty if it succeeded.
        frames: The innermost frames of its error.
    """

    attempt: int
    ended_ms: int
    duration_s: float | None
    error_type: str = ""
    frames: str = ""


@dataclass(frozen=True, slots=True)
class RelatedMessage(Report):
    """A message that caused or was caused by another: its stream or outbox target, and its id."""

    place: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Selects jobs. All conditions must hold; None matches every job.

    Attributes:
        event: The event.
        id: The message's id.
        key: The ordering key.
        min_age_s: Smallest age since the emission.
        max_age_s: Largest age since the emission.
        error: Of dead jobs: class of the error, the last parts of its name, or the reason.
    """

    event: str | None = None
    id: str | None = None
    key: str | None = None
    min_age_s: float | None = None
    max_age_s: float | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        for name in ("event", "id", "key", "error"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name))
        for name in ("min_age_s", "max_age_s"):
            if getattr(self, name) is not None:
                require_seconds(name, getattr(self, name), zero_allowed=True)

    @property
    def is_empty(self) -> bool:
        """True if the filter matches every job."""
        return self == EVERY_JOB

    def accepts(self, job: "JobReport") -> bool:
        """Return whether the job matches."""
        return (
            (self.event is None or self.event == job.event)
            and (self.id is None or self.id == job.id)
            and (self.key is None or self.key == job.key)
            and (self.min_age_s is None or job.age_s >= self.min_age_s)
            and (self.max_age_s is None or job.age_s <= self.max_age_s)
            and (self.error is None or _is_cause(self.error, job))
        )


def _is_cause(wanted: str, job: "JobReport") -> bool:
    wanted = wanted.removeprefix("builtins.")
    return wanted in {job.error_type, job.reason} or job.error_type.endswith(f".{wanted}")


EVERY_JOB = JobFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport(Report):
    """One job at one place.

    Attributes:
        id: The message's id, the same through all attempts.
        event: Its event; empty if the entry is not a message.
        phase: Its phase.
        stream: Its stream.
        group: Its consumer group; empty for every group.
        place: Entry id in the stream, or id of the dead letter; empty while it is delayed or parked.
        attempt: The current or next attempt; the last one of a dead job.
        emitted_ms: Time of emission in milliseconds since the epoch; 0 if unknown.
        age_s: Seconds since the emission, by the server's clock.
        due_ms: Due time of a delayed or retrying job.
        consumer: The worker of a running job.
        deliveries: Deliveries of its entry, as counted by the server.
        idle_s: Seconds since the worker last renewed its lease.
        error_type: Class of the last error of a dead job.
        reason: Why it is dead: a value of ``Reason``.
        key: Its ordering key; empty if it has none.
        caused_by: The message that caused it, if a handler emitted it.
        attempts: The failed attempts that it carries, oldest first.
        data: The data of the message, if requested.
    """

    id: str
    event: str
    phase: JobPhase
    stream: str
    group: str = ""
    place: str = ""
    attempt: int = 1
    emitted_ms: int = 0
    age_s: float = 0.0
    due_ms: int | None = None
    consumer: str = ""
    deliveries: int = 0
    idle_s: float = 0.0
    error_type: str = ""
    reason: str = ""
    key: str = ""
    caused_by: RelatedMessage | None = None
    attempts: tuple[JobAttempt, ...] = ()
    data: dict[str, Any] | None = field(default=None, repr=False)
    raw_payload: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class JobList(Report):
    """A page of jobs of one phase.

    Attributes:
        jobs: Matching jobs, in order of their place or due time.
        cursor: Cursor for the next call; None if all were read. A page with few or no jobs may have a cursor.
        scanned: Jobs that were read for this page.
    """

    jobs: tuple[JobReport, ...]
    cursor: str | None
    scanned: int


@dataclass(frozen=True, slots=True)
class Cancellation(Report):
    """Cancellation of a job.

    Attributes:
        state: ``cancelled``; or ``requested``, while the worker that runs the job decides.
        at_ms: Time of that state, by the server's clock.
        event: The job's event.
        group: The consumer group of the cancellation.
        while_in: The phase in which it was found.
    """

    state: str
    at_ms: int
    event: str
    group: str
    while_in: str


@dataclass(frozen=True, slots=True)
class JobProgress(Report):
    """Progress that a handler reported by ``ctx.progress``."""

    fraction: float
    text: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class JobHistory(Report):
    """History of one job.

    Attributes:
        id: The message's id.
        phase: Its phase; None if the job is unknown.
        places: Each place where it was found: one per group, and more if its id was used for several messages.
        times_ms: Last time of each state, if job states are stored (``job_ttl_s``).
        error_type: Its last error, if states are stored or it is dead.
        traceback: Frames of that error, if it is dead.
        cancellation: Its cancellation, if requested.
        progress: The last progress that it reported.
        has_result: True if its result is stored.
        complete: False if a limit ended the search: the job may be among older messages.
        scanned: Messages that were searched.
        attempts: Its attempts, oldest first: the failed ones that the message or its recorded state carries, and the
            successful one if states are stored.
        caused_by: The message that caused it, if a handler emitted it.
        caused: The first 20 messages that its handler emitted; only if states are stored.
        event: Its event; empty if the job is unknown.
    """

    id: str
    phase: JobPhase | None
    places: tuple[JobReport, ...]
    times_ms: dict[str, int]
    error_type: str
    traceback: str
    cancellation: Cancellation | None
    progress: JobProgress | None
    has_result: bool
    complete: bool
    scanned: int
    attempts: tuple[JobAttempt, ...] = ()
    caused_by: RelatedMessage | None = None
    caused: tuple[RelatedMessage, ...] = ()
    event: str = ""
