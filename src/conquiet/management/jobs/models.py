"""What is asked about jobs, and what is answered. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from conquiet.core.validation import require_seconds, require_text
from conquiet.management.models import Report


class JobPhase(StrEnum):
    """Where a job is.

    WAITING stands in the stream and was not delivered to the group. DELAYED waits for its first attempt, RETRYING for a
    further one. RUNNING was delivered to a worker and is not settled; a few of them may wait in the worker's prefetch.
    BEHIND waits until it is its turn: other messages of its key come first (docs/ordering.md).
    PARKED waits for the end of a pause of its event. DEAD is a dead letter. SUCCEEDED and CANCELLED are over: they are
    known from the job's recorded state or its cancellation, and cannot be listed.
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


LISTED = (
    JobPhase.WAITING,
    JobPhase.BEHIND,
    JobPhase.DELAYED,
    JobPhase.RUNNING,
    JobPhase.RETRYING,
    JobPhase.PARKED,
    JobPhase.DEAD,
)
"""The phases that can be listed."""


@dataclass(frozen=True, slots=True)
class JobAttempt(Report):
    """One attempt of a job.

    Attributes:
        attempt: Its number, from 1.
        ended_ms: When it ended; 0 if unknown.
        duration_ms: How long its handler ran; None if unknown.
        error_type: Class of its error; empty if it succeeded.
        frames: The innermost frames of its error.
    """

    attempt: int
    ended_ms: int
    duration_ms: int | None
    error_type: str = ""
    frames: str = ""


@dataclass(frozen=True, slots=True)
class RelatedMessage(Report):
    """A message that caused another, or was caused by one: its stream or the target of its outbox, and its id."""

    place: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Selects jobs. All conditions must hold; what is None does not matter.

    Attributes:
        event: Its event.
        id: The message's id.
        key: Its key: messages of one key run in order.
        min_age_s: Emitted at least so long ago.
        max_age_s: Emitted at most so long ago.
        error: Only dead ones: class of the error, or the last parts of its name, or the reason.
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
        """True if every job is meant."""
        return self == EVERY_JOB

    def accepts(self, job: "JobReport") -> bool:
        """True if this job is meant."""
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
        event: Its event; empty if the entry is no message.
        phase: Where it is.
        stream: Its stream.
        group: The consumer group it is meant for; empty for every group.
        place: Entry id in the stream or among the dead letters; empty while it is delayed or parked.
        attempt: The attempt that is next or under way, for a dead one the last.
        emitted_ms: When it was emitted, milliseconds since the epoch; 0 if unknown.
        age_s: Seconds since then, by the server's clock.
        due_ms: When it is due, for a delayed or retrying one.
        consumer: The worker it was delivered to, for a running one.
        deliveries: How often the server has delivered its entry.
        idle_ms: Since the worker last renewed its lease.
        error_type: Class of the error it died of.
        reason: Why it is dead: a value of ``Reason``.
        key: Its key; empty if it has none.
        caused_by: The message whose handler emitted it, if it was one.
        attempts: Its failed attempts, oldest first, as far as it carries them.
        data: The message's own data, only where it was asked for.
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
    idle_ms: int = 0
    error_type: str = ""
    reason: str = ""
    key: str = ""
    caused_by: RelatedMessage | None = None
    attempts: tuple[JobAttempt, ...] = ()
    data: dict[str, Any] | None = field(default=None, repr=False)
    raw_payload: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class JobList(Report):
    """Some jobs of one phase.

    Attributes:
        jobs: Those that match, in order of their place or due time.
        cursor: Give it to the next call; None if all were seen. A page with few jobs, or none, may have one.
        scanned: Jobs that were looked at for this page.
    """

    jobs: tuple[JobReport, ...]
    cursor: str | None
    scanned: int


@dataclass(frozen=True, slots=True)
class Cancellation(Report):
    """What is known of the cancellation of a job.

    Attributes:
        state: ``cancelled``; or ``requested``, while the worker that runs the job decides.
        at_ms: When that was, by the server's clock.
        event: The job's event.
        group: The group it was cancelled for.
        while_in: The phase in which it was found.
    """

    state: str
    at_ms: int
    event: str
    group: str
    while_in: str


@dataclass(frozen=True, slots=True)
class JobProgress(Report):
    """What a handler has reported by ``ctx.progress``."""

    fraction: float
    text: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class JobStory(Report):
    """Everything that is known about one job.

    Attributes:
        id: The message's id.
        phase: Where it is; None if nothing is known of it.
        places: Each place where it was found: one per group, and more if its id was used for several messages.
        times_ms: When it last came into each state, if job states are kept (``job_ttl_s``).
        error_type: Its last error, if states are kept or it is dead.
        traceback: Frames of that error, for a dead one.
        cancellation: Its cancellation, if one was asked for.
        progress: The last progress it has reported.
        has_result: True if its result is kept.
        complete: False if a limit ended the search: the job may be further back than was looked.
        scanned: Messages that were looked at.
        attempts: Its attempts, oldest first: failed ones as far as the message carries them (or its recorded state
            does), the successful one if states are kept.
        caused_by: The message whose handler emitted it, if it was one.
        caused: Messages that its handler emitted, the first 20; only if states are kept.
        event: Its event; empty if nothing is known of it.
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
