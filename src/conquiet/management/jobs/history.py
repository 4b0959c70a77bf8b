"""Combine everything that is known of one job into its ``JobHistory``. Pure.

The history that is stored with the state of a job is decoded here; see docs/decisions/0018.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from conquiet.management.jobs.decoding import as_attempts, in_seconds
from conquiet.management.jobs.models import (
    Cancellation,
    JobAttempt,
    JobHistory,
    JobPhase,
    JobProgress,
    JobReport,
    RelatedMessage,
)
from conquiet.management.jobs.search import Search
from conquiet.processor.failed_attempts import read_attempts
from conquiet.processor.jobs import JobState

_ENDED = {JobState.SUCCEEDED.value: JobPhase.SUCCEEDED, "cancelled": JobPhase.CANCELLED}
_BY_RANK = (
    JobPhase.RUNNING,
    JobPhase.WAITING,
    JobPhase.BEHIND,
    JobPhase.PARKED,
    JobPhase.RETRYING,
    JobPhase.DELAYED,
    JobPhase.DEAD,
)


class RecordedHistory(NamedTuple):
    """Stored history of a job.

    Attributes:
        failed: Its failed attempts, oldest first.
        duration_s: Run time of its last attempt.
        caused_by: The message that caused it.
        caused: Messages that its handler emitted.
    """

    failed: tuple[JobAttempt, ...] = ()
    duration_s: float | None = None
    caused_by: RelatedMessage | None = None
    caused: tuple[RelatedMessage, ...] = ()


def join_facts(search: Search, state: Any, cancelled: Any, progress: Any, *, has_result: bool) -> JobHistory:
    """Return the history of a job.

    Args:
        search: The finished search for the job.
        state: Reply to HGETALL of its recorded state; empty if none is stored.
        cancelled: The same of its cancellation.
        progress: The same of its progress.
        has_result: True if its result is stored.
    """
    state = _texts(state)
    places = tuple(sorted(search.found, key=phase_rank))
    recorded = read_recorded(state.get("story", ""))
    cancellation = _cancellation(_texts(cancelled))
    if places and places[0].phase is not JobPhase.DEAD:
        phase: JobPhase | None = places[0].phase
    elif cancellation is not None and cancellation.state == "cancelled":
        phase = JobPhase.CANCELLED
    else:
        phase = _ENDED.get(state.get("state", "")) or (places[0].phase if places else None)
    return JobHistory(
        id=search.id,
        phase=phase,
        places=places,
        times_ms={one.value: int(state[f"{one.value}_ms"]) for one in JobState if f"{one.value}_ms" in state},
        error_type=state.get("error", "") or next((job.error_type for job in places if job.error_type), ""),
        traceback=next(iter(search.tracebacks), ""),
        cancellation=cancellation,
        progress=_progress(_texts(progress)),
        has_result=has_result,
        complete=search.complete,
        scanned=search.scanned,
        attempts=_attempts(places, recorded, state),
        caused_by=next((one.caused_by for one in places if one.caused_by is not None), recorded.caused_by),
        caused=recorded.caused,
        event=next((one.event for one in places if one.event), state.get("event", "")),
    )


def phase_rank(job: JobReport) -> int:
    """Return the rank of a job's phase: RUNNING comes first, DEAD last."""
    return _BY_RANK.index(job.phase)


def read_recorded(raw: str) -> RecordedHistory:
    """Decode a stored history; empty if another version wrote it."""
    try:
        facts = msgspec.json.decode(raw.encode()) if raw else {}
    except (msgspec.DecodeError, UnicodeEncodeError):
        facts = {}
    if not isinstance(facts, dict):
        return RecordedHistory()
    duration_ms, caused = facts.get("ms"), facts.get("caused")
    return RecordedHistory(
        as_attempts(read_attempts(facts.get("failures"))),
        in_seconds(duration_ms) if isinstance(duration_ms, int) else None,
        _related(facts.get("by")),
        tuple(found for one in caused if (found := _related(one)) is not None) if isinstance(caused, list) else (),
    )


def _attempts(
    places: Sequence[JobReport], recorded: RecordedHistory, state: Mapping[str, str]
) -> tuple[JobAttempt, ...]:
    """Return the attempts of a job. The attempts in the message are newer than the recorded ones."""
    failed = next((one.attempts for one in places if one.attempts), recorded.failed)
    if state.get("state") != JobState.SUCCEEDED.value:
        return failed
    ended_ms = int(state.get(f"{JobState.SUCCEEDED.value}_ms", "0"))
    return (*failed, JobAttempt(int(state.get("attempt", "1")), ended_ms, recorded.duration_s))


def _cancellation(facts: Mapping[str, str]) -> Cancellation | None:
    if not facts:
        return None
    state, event, group, while_in = (facts.get(name, "") for name in ("state", "event", "group", "while_in"))
    return Cancellation(state, int(facts.get("at_ms", "0")), event, group, while_in)


def _progress(facts: Mapping[str, str]) -> JobProgress | None:
    if not facts:
        return None
    return JobProgress(float(facts["fraction"]), facts.get("text", ""), int(facts.get("at_ms", "0")))


def _related(found: Any) -> RelatedMessage | None:
    if isinstance(found, list) and len(found) == 2 and all(isinstance(one, str) for one in found):  # noqa: PLR2004
        return RelatedMessage(*found)
    return None


def _texts(reply: Any) -> dict[str, str]:
    return {
        name.decode(): value.decode(errors="backslashreplace")
        for name, value in zip(reply[::2], reply[1::2], strict=True)
    }
