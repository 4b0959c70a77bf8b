"""The state of every job, if ``job_ttl_s`` is set. An informational copy: the streams are authoritative.

    waiting ─┐                        ┌─▶ succeeded
    delayed ─┴─▶ running ─────────────┼─▶ failed ──▶ running …     (waits for its next attempt)
                                      ├─▶ dead                     (no attempt is left)
    any state that is not final ──────┴─▶ cancelled

A state is written after the fact, batched with others in one round trip. A state that cannot be written is logged and
fails no message. A finished job expires after ``job_ttl_s``; an unfinished job stays. Final states are retried:
without one a job would be shown as running indefinitely. Other states are not retried, because a late write would
reopen a finished job.

See docs/decisions/0016.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from conquiet.core.causation import MessageRef, read_cause
from conquiet.core.log import FactLogger
from conquiet.core.micro_batcher import MicroBatcher
from conquiet.core.redaction import printable
from conquiet.core.validation import require_instance, require_positive
from conquiet.errors import QueueError
from conquiet.processor.envelope import Envelope
from conquiet.processor.failed_attempts import error_type_of
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.policy import milliseconds
from conquiet.processor.scripts import Arg, script
from conquiet.redis_transport.client import AsyncClient, SyncClient, require_raw_client
from conquiet.redis_transport.client_commands import command
from conquiet.redis_transport.replies import as_mapping

logger = FactLogger(__name__)

_BATCH = 250
_MOST_DUE = 4 * _BATCH
_PAUSE_S = 1.0
_TRIES = 30
_PURGE_EVERY_S = 60.0


class JobState(Enum):
    """The states of a job, in the order that ``jobs.lua`` uses."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"


_NUMBER = {state: number for number, state in enumerate(JobState, start=1)}
_ENDS = {_NUMBER[JobState.SUCCEEDED], _NUMBER[JobState.DEAD], _NUMBER[JobState.CANCELLED]}


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """The history that is stored with the state of a job.

    Attributes:
        envelope: The message, with its failed attempts and its cause.
        duration_s: Duration of the last attempt, if known.
        caused: Messages that its handler emitted.
    """

    envelope: Envelope
    duration_s: float | None = None
    caused: Sequence[MessageRef] | None = None

    def encode(self) -> bytes:
        """Return the history as JSON. Empty if there is none."""
        cause = read_cause(self.envelope.headers)
        facts = {
            "failures": self.envelope.failures,
            "ms": None if self.duration_s is None else max(0, round(self.duration_s * 1000)),
            "caused": self.caused,
            "by": cause,
        }
        known = {name: value for name, value in facts.items() if value is not None and value != ()}
        return _encode_history(known) if known else b""


_encode_history = msgspec.json.Encoder().encode

NewState = tuple[str, str, int, JobState]
"""Id, event, attempt and state of one job."""


@dataclass(frozen=True, slots=True)
class Job:
    """The recorded state of one job.

    Attributes:
        id: Message id.
        event: Its event.
        state: Current state.
        attempt: Number of the attempt.
        error_type: Class of the last failure. Empty if there was none.
        times_ms: When it last entered each of its states.
    """

    id: str
    event: str
    state: JobState
    attempt: int
    error_type: str
    times_ms: dict[JobState, int]


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of job ids in a state, and the next cursor. 0 means that this is the last page."""

    ids: tuple[str, ...]
    cursor: int


@dataclass(slots=True)
class _StateChange:
    keys: Keys
    args: tuple[Arg, ...]
    job: str
    tries: int = 0

    @property
    def is_worth_another_try(self) -> bool:
        return self.args[0] in _ENDS and self.tries < _TRIES


class JobRecorder:
    """Writes job states in batches.

    Args:
        client: A client without retries. The caller closes it.
        ttl_s: How long a finished job is kept.
    """

    def __init__(self, client: AsyncClient, *, ttl_s: float) -> None:
        self._client = client
        self._ttl_ms = max(1, milliseconds(ttl_s))
        self._due: MicroBatcher[_StateChange] = MicroBatcher(self._flush, limit=_BATCH, name="conquiet-jobs")
        self._failed: list[_StateChange] = []
        self._failed_at = 0.0
        self._purged_at: dict[Keys, float] = {}

    async def record(
        self, keys: Keys, envelope: Envelope, state: JobState, failure: BaseException | None = None
    ) -> None:
        """Write a state and return when it is written or has failed. Never raises if Redis is unavailable."""
        await self.record_all(
            keys,
            [(envelope.id, envelope.event, envelope.attempt, state)],
            error_type="" if failure is None else error_type_of(failure),
            history=StoredHistory(envelope).encode() if envelope.failures else b"",
        )

    async def record_all(
        self,
        keys: Keys,
        jobs: Sequence[NewState],
        *,
        error_type: str = "",
        only_new: bool = False,
        history: bytes = b"",
    ) -> None:
        """Write the states of several jobs: id, event, attempt, state. ``only_new`` skips known jobs."""
        for job in jobs:
            self._due.add(_noted(keys, job, error_type, only_new=only_new, history=history))
        await self._due.drain()

    async def record_soon(
        self, keys: Keys, envelope: Envelope, state: JobState, history: StoredHistory | None = None
    ) -> None:
        """Queue a final state for the next batch. Waits only if too many are due."""
        job = (envelope.id, envelope.event, envelope.attempt, state)
        self._due.add(_noted(keys, job, "", only_new=False, history=b"" if history is None else history.encode()))
        if len(self._due) > _MOST_DUE:
            await self._due.drain()

    async def purge(self, keys: Keys) -> None:
        """Remove some expired jobs from the index, about once a minute. Never raises.

        Needed because the index is otherwise trimmed only when a state is written.
        """
        now = time.monotonic()
        if now - self._purged_at.get(keys, 0.0) < _PURGE_EVERY_S:
            return
        self._purged_at[keys] = now
        await self._write(keys, ())

    def retry_failed(self) -> None:
        """Retry final states that could not be written, unless the last attempt was less than a second ago."""
        if self._failed and time.monotonic() - self._failed_at >= _PAUSE_S:
            self._requeue_failed()
            self._due.flush_soon()

    async def drain(self) -> None:
        """Write all due states. States that cannot be written are logged and dropped."""
        self._requeue_failed()
        await self._due.drain()
        for note in self._failed:
            log_dropped(note.keys, 1, "QueueError")
        self._failed = []

    def _requeue_failed(self) -> None:
        self._due.requeue(self._failed)
        self._failed = []

    async def _flush(self, batch: list[_StateChange]) -> None:
        by_stream: dict[Keys, list[_StateChange]] = {}
        for note in batch:
            by_stream.setdefault(note.keys, []).append(note)
        for keys, notes in by_stream.items():
            await self._write(keys, notes)

    async def _write(self, keys: Keys, notes: Sequence[_StateChange]) -> None:
        names, args = _command(keys, notes, self._ttl_ms)
        try:
            await script("jobs").call(self._client, names, args, stream=keys.stream)
        except QueueError as error:
            free = _MOST_DUE - len(self._failed)
            again = [note for note in notes if note.is_worth_another_try][:free]
            for note in again:
                note.tries += 1
            self._failed += again
            self._failed_at = time.monotonic()
            if len(again) < len(notes):
                log_dropped(keys, len(notes) - len(again), type(error).__name__)


def record_new(client: SyncClient, keys: Keys, jobs: Sequence[NewState], *, ttl_s: float) -> None:
    """Write the states of unknown jobs, without asyncio. Never raises if Redis is unavailable."""
    notes = [_noted(keys, job, "", only_new=True) for job in jobs]
    for start in range(0, len(notes), _BATCH):
        batch = notes[start : start + _BATCH]
        names, args = _command(keys, batch, max(1, milliseconds(ttl_s)))
        try:
            script("jobs").call_sync(client, names, args, stream=keys.stream)
        except QueueError as error:
            log_dropped(keys, len(batch), type(error).__name__)


def _noted(keys: Keys, job: NewState, error_type: str, *, only_new: bool, history: bytes = b"") -> _StateChange:
    job_id, event, attempt, state = job
    args = (_NUMBER[state], job_id, event, attempt, error_type, "1" if only_new else "0", history)
    return _StateChange(keys, args, keys.job(job_id))


def _command(keys: Keys, notes: Sequence[_StateChange], ttl_ms: int) -> tuple[list[str], list[Arg]]:
    names = [*(keys.jobs(state.value) for state in JobState), *(note.job for note in notes)]
    args: list[Arg] = [ttl_ms]
    for note in notes:
        args += note.args
    return names, args


def log_dropped(keys: Keys, count: int, error: str) -> None:
    """Log that states were not written. The messages are not affected."""
    logger.warning("job states not written", stream=printable(keys.stream), jobs=count, error=error)


class Jobs:
    """Reads job states.

    Args:
        client: A client without retries. The caller closes it.
    """

    def __init__(self, client: AsyncClient) -> None:
        require_raw_client(client)
        self._client = client

    async def get(self, stream: str, job_id: str) -> Job | None:
        """Return one job, or None if it is unknown or has expired."""
        key = keys_of(stream).job(require_instance("job_id", job_id, str))
        reply = await command(self._client, "HGETALL", key, stream=stream)
        facts = {name.decode(): value.decode() for name, value in as_mapping(reply).items()}
        if not facts:
            return None
        return Job(
            id=job_id,
            event=facts["event"],
            state=JobState(facts["state"]),
            attempt=int(facts["attempt"]),
            error_type=facts.get("error", ""),
            times_ms={state: int(facts[f"{state.value}_ms"]) for state in JobState if f"{state.value}_ms" in facts},
        )

    async def count(self, stream: str) -> dict[JobState, int]:
        """Return the number of jobs by state."""
        keys = keys_of(stream)
        names = [keys.jobs(state.value) for state in JobState]
        reply = await script("counts").call(self._client, names, (), stream=stream)
        return dict(zip(JobState, reply, strict=True))

    async def list(self, stream: str, state: JobState, *, cursor: int = 0, limit: int = 100) -> JobPage:
        """Return about ``limit`` ids in a state, in no order. A job that stays in the state is on one of the pages."""
        require_instance("state", state, JobState)
        require_positive("limit", limit)
        if cursor != 0:
            require_positive("cursor", cursor)
        name = keys_of(stream).jobs(state.value)
        following, pairs = await command(self._client, "ZSCAN", name, int(cursor), "COUNT", limit, stream=stream)
        return JobPage(tuple(job_id.decode() for job_id in pairs[::2]), int(following))
