"""Changes single jobs: cancel, run now, reschedule, retry a dead one with other data.

Each change is one script on the server, which checks that the job is still where it was found. A job that has moved on
meanwhile is looked for again. Jobs that run are cancelled by their worker (``processor.cancellation``).

See docs/decisions/0046.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from conquiet.core.json_codec import CodecError, encode_payload
from conquiet.core.redaction import printable
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError, OperatorError, PayloadError
from conquiet.management.jobs.models import JobPhase, JobReport
from conquiet.management.jobs.reader import JobReader
from conquiet.management.jobs.search import SEARCH_LIMIT, JobFinder
from conquiet.management.models import Report
from conquiet.processor.cancellation import RECORD_KEPT_MS
from conquiet.processor.envelope import encode_raw, replayed
from conquiet.processor.jobs import JobState

_TRIES = 5
_POLL_S = 0.05
_LONGEST_POLL_S = 1.0
_SETTLED = {"cancelled", "finished"}
_MAX_BYTES = 512 * 1024 * 1024


class JobChange(StrEnum):
    """What became of a job that was to be changed.

    CANCELLED has no effect and will have none. REQUESTED: its worker is asked, and has not decided yet. FINISHED had
    its effect before. MOVED was brought to the stream or given another time. GONE is nowhere: it ended, or never was.
    REFUSED cannot be changed in this way where it is.
    """

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    FINISHED = "finished"
    MOVED = "moved"
    GONE = "gone"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ChangeReport(Report):
    """What became of one job.

    Attributes:
        id: The job's id.
        change: What became of it.
        phase: Where it was found; None if it was not.
        note: Why it was refused, and what to do instead.
    """

    id: str
    change: JobChange
    phase: JobPhase | None = None
    note: str = ""


class JobControl:
    """Changes jobs of one stream.

    Args:
        reader: Reads the stream.
        finder: Finds single jobs.
    """

    def __init__(self, reader: JobReader, finder: JobFinder) -> None:
        self._reader = reader
        self._finder = finder
        self._keys = reader.keys

    # ------------------------------------------------------------ cancel

    async def cancel(self, job_id: str, *, timeout_s: float = 10.0, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Cancel a job wherever it is. For a running one, wait up to ``timeout_s`` for its worker's decision."""
        require_seconds("timeout_s", timeout_s, zero_allowed=True)
        for _ in range(_TRIES):
            search = await self._finder.find(job_id, search_limit=search_limit)
            alive = [job for job in search.found if job.phase is not JobPhase.DEAD]
            if not alive:
                return await self._ended(job_id, search.found, complete=search.complete)
            reports = [await self.cancel_found(job) for job in alive]
            if any(report.change is JobChange.REQUESTED for report in reports):
                return await self._decision(job_id, timeout_s)
            report = min(reports, key=lambda one: list(JobChange).index(one.change))
            if report.change is not JobChange.GONE:
                return report
        return ChangeReport(job_id, JobChange.GONE)

    async def cancel_found(self, job: JobReport) -> ChangeReport:
        """Cancel a job at the place where it was found. GONE if it has moved on since."""
        keys = self._keys
        records = (keys.cancelled(job.id), keys.job(job.id), keys.jobs(JobState.CANCELLED.value))
        match job.phase:
            case JobPhase.DELAYED | JobPhase.RETRYING | JobPhase.PARKED | JobPhase.BEHIND:
                place, kind = self._place_of(job)
                removed = await self._reader.call(
                    "job_cancel_delayed",
                    (place, *records, keys.stream, keys.order),
                    (
                        job.raw_payload,
                        kind,
                        job.phase.value,
                        job.event,
                        job.group,
                        job.id,
                        RECORD_KEPT_MS,
                        keys.jobs(""),
                    ),
                )
                change = JobChange.CANCELLED if removed else JobChange.GONE
            case JobPhase.WAITING | JobPhase.RUNNING:
                group = job.group or await self._only_group()
                answer = await self._reader.call(
                    "job_cancel_entry",
                    (keys.stream, keys.cancel, keys.wake, *records, keys.order),
                    (job.place, group, job.event, job.id, RECORD_KEPT_MS, keys.jobs("")),
                )
                change = JobChange(answer.decode())
            case _:
                return ChangeReport(job.id, JobChange.REFUSED, job.phase, "it is dead: retry or discard it")
        return ChangeReport(job.id, change, job.phase)

    def _place_of(self, job: JobReport) -> tuple[str, str]:
        if job.phase is JobPhase.PARKED:
            return self._keys.parked_event(job.event), "parked"
        if job.phase is JobPhase.BEHIND:
            return self._keys.waiting(job.place), "behind"
        return self._keys.delayed, "delayed"

    async def decision(self, job_id: str) -> JobChange | None:
        """Return how a request to cancel has ended; None while it is open, or if there was none."""
        names = (self._keys.stream, self._keys.cancel, self._keys.cancelled(job_id))
        state = await self._reader.call("job_decision", names, (job_id, RECORD_KEPT_MS))
        return JobChange(state.decode()) if state and state.decode() in _SETTLED else None

    async def _decision(self, job_id: str, timeout_s: float) -> ChangeReport:
        ends_at = time.monotonic() + timeout_s
        pause_s = _POLL_S
        while (change := await self.decision(job_id)) is None:
            if time.monotonic() >= ends_at:
                note = "its worker has not decided yet; the request stands, also if the worker dies"
                return ChangeReport(job_id, JobChange.REQUESTED, JobPhase.RUNNING, note)
            await asyncio.sleep(min(pause_s, max(0.0, ends_at - time.monotonic())))
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
        return ChangeReport(job_id, change, JobPhase.RUNNING)

    async def _ended(self, job_id: str, found: list[JobReport], *, complete: bool) -> ChangeReport:
        change = await self.decision(job_id)
        if change is not None:
            return ChangeReport(job_id, change)
        if found:
            return ChangeReport(job_id, JobChange.REFUSED, JobPhase.DEAD, "it is dead: retry or discard it")
        note = "" if complete else "the search ended at its limit: the job may be further back"
        return ChangeReport(job_id, JobChange.GONE, None, note)

    async def _only_group(self) -> str:
        group = await self._reader.group(required=True)
        return "" if group is None else group.name

    # ------------------------------------------------------------ when

    async def run_now(self, job_id: str, *, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Bring a delayed or retrying job to its stream now. Its attempts stay as they are."""
        return await self._move(job_id, "", search_limit)

    async def reschedule(
        self,
        job_id: str,
        *,
        delay_s: float | None = None,
        at: float | datetime | None = None,
        search_limit: int = SEARCH_LIMIT,
    ) -> ChangeReport:
        """Let a delayed or retrying job be due at another time: in ``delay_s`` seconds, or ``at`` a moment."""
        due_ms = await self._due_ms(delay_s, at)
        return await self._move(job_id, str(due_ms), search_limit)

    async def move_found(self, job: JobReport, due: str) -> ChangeReport:
        """Move a job at the place where it was found; ``due`` is empty for now."""
        if job.phase not in {JobPhase.DELAYED, JobPhase.RETRYING}:
            note = f"it is {job.phase}: only a delayed or retrying job has a time that can be changed"
            return ChangeReport(job.id, JobChange.REFUSED, job.phase, note)
        keys = (self._keys.stream, self._keys.delayed, self._keys.wake, self._keys.order)
        moved = await self._reader.call("job_move", keys, (job.raw_payload, due))
        return ChangeReport(job.id, JobChange.MOVED if moved else JobChange.GONE, job.phase)

    async def due_in(self, delay_s: float) -> str:
        """Return the due time of ``move_found`` that is so many seconds from now, by the server's clock."""
        return str(await self._due_ms(delay_s, None))

    async def _move(self, job_id: str, due: str, search_limit: int) -> ChangeReport:
        for _ in range(_TRIES):
            search = await self._finder.find(job_id, search_limit=search_limit)
            if not search.found:
                break
            found = sorted(search.found, key=lambda job: job.phase not in {JobPhase.DELAYED, JobPhase.RETRYING})
            report = await self.move_found(found[0], due)
            if report.change is not JobChange.GONE:
                return report
        return ChangeReport(job_id, JobChange.GONE)

    async def _due_ms(self, delay_s: float | None, at: float | datetime | None) -> int:
        if (delay_s is None) == (at is None):
            raise ConfigurationError("give delay_s or at: one of them")
        if delay_s is not None:
            return await self._reader.now_ms() + round(require_seconds("delay_s", delay_s, zero_allowed=True) * 1000)
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ConfigurationError("at must be a datetime with a time zone, e.g. datetime.now(UTC)")
            at = at.timestamp()
        return round(require_seconds("at", at, zero_allowed=True) * 1000)

    # ------------------------------------------------------------ dead ones

    async def edit(
        self, dead_id: str, data: Mapping[str, Any] | None = None, *, group: str | None = None
    ) -> ChangeReport:
        """Retry a dead letter with other data, with all its attempts, for the group it died in or another.

        Args:
            dead_id: The dead letter's id (``place`` of a dead job).
            data: In place of its data; None leaves it.
            group: The consumer group to bring it back for.

        Raises:
            OperatorError: It was no message, or its group does not exist.
            PayloadError: ``data`` cannot be JSON.
        """
        dead = await self._reader.dead_letters.show(dead_id)
        if dead is None:
            return ChangeReport(dead_id, JobChange.GONE)
        record = dead.record
        if not record.replayable or record.payload is None:
            return ChangeReport(record.id, JobChange.REFUSED, JobPhase.DEAD, "it was no message in the first place")
        wanted = group or record.group
        payload = replayed(record.payload, group=wanted)
        if data is not None:
            _require_data(data, self._keys.stream)
            payload["data"] = dict(data)
        names = (self._keys.stream, self._keys.dead, self._keys.order)
        answer = await self._reader.call("job_edit", names, (dead_id, wanted, encode_raw(payload)))
        if answer == 2:  # noqa: PLR2004 - see the script
            raise OperatorError(
                f"stream {printable(self._keys.stream)!r} has no group {printable(wanted)!r}: the dead letter stays. "
                "Name the group that shall handle it"
            )
        return ChangeReport(record.id, JobChange.MOVED if answer else JobChange.GONE, JobPhase.DEAD)


def _require_data(data: Mapping[str, Any], stream: str) -> None:
    try:
        encode_payload(data, max_bytes=_MAX_BYTES)
    except CodecError as error:
        refused = error
    else:
        return
    raise PayloadError(
        f"edit of a job in stream {printable(stream)!r}: data was refused: {refused.explanation}",
        stream=stream,
        command="edit",
        reason=refused.reason,
        path=refused.path,
    )
