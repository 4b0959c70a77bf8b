"""Where every job stands, for whoever turns it on (``job_ttl_s``). A view, not the truth.

    waiting ─┐                        ┌─▶ succeeded
    delayed ─┴─▶ running ─────────────┼─▶ failed ──▶ running …     (it waits for its next attempt)
                                      └─▶ dead                     (no attempt is left)

The truth is in the streams: a state is written after the fact it tells of, gathered with others into one
round trip, and a state that cannot be written is logged, and fails nobody's message. A finished job is
forgotten after its time; one that is not finished stays. So an end is tried again: without it the job would
run for ever. What comes before an end is not: it would be told after the end, and begin a new life.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import redis
import redis.asyncio

from conquiet.errors import ConfigurationError, QueueError
from conquiet.kernel.redaction import printable
from conquiet.kernel.validation import require_positive
from conquiet.processor.envelope import Envelope
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.policy import milliseconds
from conquiet.processor.records import describe
from conquiet.processor.scripts import Arg, script

logger = logging.getLogger(__name__)

_BATCH = 250
_MOST_DUE = 4 * _BATCH
_PAUSE_S = 1.0
_TRIES = 30


class JobState(Enum):
    """The states there are; the order is that of ``jobs.lua``."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"


_NUMBER = {state: number for number, state in enumerate(JobState, start=1)}
_ENDS = {_NUMBER[JobState.SUCCEEDED], _NUMBER[JobState.DEAD]}

NewState = tuple[str, str, int, JobState]
"""Id, event, attempt and state of one job."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as far as it is known.

    Attributes:
        id: The message's id.
        event: Its event.
        state: Where it stands.
        attempt: Which attempt that was.
        error_type: Class of the last failure, empty if there was none.
        times_ms: When it last came into each state it has been in.
    """

    id: str
    event: str
    state: JobState
    attempt: int
    error_type: str
    times_ms: dict[JobState, int]


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some ids of jobs in a state, and where to go on; ``cursor`` 0 means that all were seen."""

    ids: tuple[str, ...]
    cursor: int


@dataclass(slots=True)
class _Note:
    keys: Keys
    args: tuple[Arg, ...]
    job: str
    tries: int = 0

    @property
    def is_worth_another_try(self) -> bool:
        return self.args[0] in _ENDS and self.tries < _TRIES


class JobRecorder:
    """Writes states, many at a time.

    Args:
        client: A client without retries; it stays the caller's.
        ttl_s: How long a finished job is kept.
    """

    def __init__(self, client: redis.asyncio.Redis, *, ttl_s: float) -> None:
        self._client = client
        self._ttl_ms = max(1, milliseconds(ttl_s))
        self._due: list[_Note] = []
        self._failed: list[_Note] = []
        self._failed_at = 0.0
        self._flushing: asyncio.Task[None] | None = None

    async def note(self, keys: Keys, envelope: Envelope, state: JobState, failure: BaseException | None = None) -> None:
        """Write a state; returns when it is written, or was found impossible to write. Never raises for the latter."""
        told = describe(failure, store_text=False)
        await self.note_all(
            keys, [(envelope.id, envelope.event, envelope.attempt, state)], error_type="" if told is None else told.type
        )

    async def note_all(
        self,
        keys: Keys,
        jobs: Sequence[NewState],
        *,
        error_type: str = "",
        only_new: bool = False,
    ) -> None:
        """Write the states of several jobs: id, event, attempt, state. ``only_new`` leaves known jobs alone."""
        self._due += [_noted(keys, job, error_type, only_new=only_new) for job in jobs]
        await self._written()

    async def note_later(self, keys: Keys, envelope: Envelope, state: JobState) -> None:
        """Write a state soon, with others: for an end that nobody waits for. Waits only if too many are due."""
        job = (envelope.id, envelope.event, envelope.attempt, state)
        self._due.append(_noted(keys, job, "", only_new=False))
        if len(self._due) > _MOST_DUE:
            await self._written()
        else:
            self._flush_soon()

    def try_again(self) -> None:
        """Begin anew with the ends that could not be written, unless that was a moment ago."""
        if self._failed and time.monotonic() - self._failed_at >= _PAUSE_S:
            self._take_back_failed()
            self._flush_soon()

    async def drain(self) -> None:
        """Return when nothing is due any more. What cannot be written now is given up."""
        self._take_back_failed()
        if self._due or (self._flushing is not None and not self._flushing.done()):
            await self._written()
        for note in self._failed:
            complain(note.keys, 1, "QueueError")
        self._failed = []

    def _take_back_failed(self) -> None:
        self._due, self._failed = self._failed + self._due, []

    async def _written(self) -> None:
        # Shielded: others' states are in the same flush, and a cancelled handler must not take them along.
        await asyncio.shield(self._flush_soon())

    def _flush_soon(self) -> asyncio.Task[None]:
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(), name="conquiet-jobs")
        return self._flushing

    async def _flush(self) -> None:
        while self._due:
            await asyncio.sleep(0)
            batch, self._due = self._due[:_BATCH], self._due[_BATCH:]
            by_stream: dict[Keys, list[_Note]] = {}
            for note in batch:
                by_stream.setdefault(note.keys, []).append(note)
            for keys, notes in by_stream.items():
                await self._write(keys, notes)

    async def _write(self, keys: Keys, notes: Sequence[_Note]) -> None:
        names, args = _command(keys, notes, self._ttl_ms)
        try:
            await script("jobs").call(self._client, names, args, stream=keys.stream)
        except QueueError as error:
            room = _MOST_DUE - len(self._failed)
            again = [note for note in notes if note.is_worth_another_try][:room]
            for note in again:
                note.tries += 1
            self._failed += again
            self._failed_at = time.monotonic()
            if len(again) < len(notes):
                complain(keys, len(notes) - len(again), type(error).__name__)


def note_new(client: redis.Redis, keys: Keys, jobs: Sequence[NewState], *, ttl_s: float) -> None:
    """Write the states of jobs that are not known yet, without asyncio. Never raises for want of the server."""
    notes = [_noted(keys, job, "", only_new=True) for job in jobs]
    for start in range(0, len(notes), _BATCH):
        batch = notes[start : start + _BATCH]
        names, args = _command(keys, batch, max(1, milliseconds(ttl_s)))
        try:
            script("jobs").call_sync(client, names, args, stream=keys.stream)
        except QueueError as error:
            complain(keys, len(batch), type(error).__name__)


def _noted(keys: Keys, job: NewState, error_type: str, *, only_new: bool) -> _Note:
    job_id, event, attempt, state = job
    args = (_NUMBER[state], job_id, event, attempt, error_type, "1" if only_new else "0")
    return _Note(keys, args, keys.job(job_id))


def _command(keys: Keys, notes: Sequence[_Note], ttl_ms: int) -> tuple[list[str], list[Arg]]:
    names = [*(keys.jobs(state.value) for state in JobState), *(note.job for note in notes)]
    args: list[Arg] = [ttl_ms]
    for note in notes:
        args += note.args
    return names, args


def complain(keys: Keys, count: int, error: str) -> None:
    """Log that states were not written, which is all that comes of it."""
    logger.warning("job states not written", extra={"stream": printable(keys.stream), "jobs": count, "error": error})


class Jobs:
    """Answers where jobs stand.

    Args:
        client: A client without retries; it stays the caller's.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def get(self, stream: str, job_id: str) -> Job | None:
        """Return one job, or None if it is not known (any more)."""
        reply = await script("hash").call(self._client, (keys_of(stream).job(job_id),), (), stream=stream)
        facts = {name.decode(): value.decode() for name, value in zip(reply[::2], reply[1::2], strict=True)}
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
        """Return how many jobs are in each state."""
        keys = keys_of(stream)
        names = [keys.jobs(state.value) for state in JobState]
        reply = await script("counts").call(self._client, names, (), stream=stream)
        return dict(zip(JobState, reply, strict=True))

    async def list(self, stream: str, state: JobState, *, cursor: int = 0, limit: int = 100) -> JobPage:
        """Return about ``limit`` ids in a state. A job that stays in it is on one of the pages; order is not kept."""
        if not isinstance(state, JobState):
            raise ConfigurationError("state must be a JobState")
        require_positive("limit", limit)
        if cursor != 0:
            require_positive("cursor", cursor)
        names = (keys_of(stream).jobs(state.value),)
        following, pairs = await script("scan").call(self._client, names, (int(cursor), limit), stream=stream)
        return JobPage(tuple(job_id.decode() for job_id in pairs[::2]), int(following))
