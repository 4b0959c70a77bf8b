"""Change one job: cancel it, move it, or retry a dead one with other data.

Each change is one script on the server at the place where the job was found, and the script checks that the job is
still there. A job that has moved on is searched again. Running jobs are cancelled by their worker
(``processor.cancellation``).

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
from conquiet.errors import ConfigurationError, OperatorError
from conquiet.management.jobs.models import JobPhase, JobReport
from conquiet.management.jobs.reader import JobReader
from conquiet.management.jobs.search import Search
from conquiet.management.models import Report
from conquiet.processor.cancellation import RECORD_KEPT_MS
from conquiet.processor.dead_letter_id import parse_dead_id
from conquiet.processor.envelope import encode_raw, replayed
from conquiet.processor.jobs import JobState

_SETTLED = {"cancelled", "finished"}
_MAX_BYTES = 512 * 1024 * 1024
_TRIES = 5
_POLL_S = 0.05
_LONGEST_POLL_S = 1.0
_IS_DEAD = "it is dead: retry or discard it"


class JobChange(StrEnum):
    """Result of a requested change.

    CANCELLED: the job has no effect. REQUESTED: its worker has not decided yet. FINISHED: the job had its effect
    before. MOVED: it was moved to the stream or has a new due time. GONE: it was not found, because it ended or never
    existed. REFUSED: its phase does not allow the change.
    """

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    FINISHED = "finished"
    MOVED = "moved"
    GONE = "gone"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ChangeReport(Report):
    """Result of a change of one job.

    Attributes:
        id: The job's id.
        change: The result.
        phase: Phase in which it was found; None if it was not found.
        note: Why it was refused, and an alternative.
    """

    id: str
    change: JobChange
    phase: JobPhase | None = None
    note: str = ""


class JobControl:
    """Changes jobs of one stream.

    Args:
        reader: Reads the stream.
    """

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader
        self._keys = reader.keys

    async def cancel(self, job_id: str, timeout_s: float, search_limit: int) -> ChangeReport:
        """Cancel one job; see ``JobAdmin.cancel``."""
        require_seconds("timeout_s", timeout_s, zero_allowed=True)
        for _ in range(_TRIES):
            search = await Search(self._reader, job_id, limit=search_limit).run()
            alive = [job for job in search.found if job.phase is not JobPhase.DEAD]
            if not alive:
                return await self._ended(search)
            reports = [await self.cancel_found(job) for job in alive]
            if any(report.change is JobChange.REQUESTED for report in reports):
                return await self._wait_for_decision(job_id, timeout_s)
            report = min(reports, key=lambda one: list(JobChange).index(one.change))
            if report.change is not JobChange.GONE:
                return report
        return ChangeReport(job_id, JobChange.GONE)

    async def move(self, job_id: str, due: str, search_limit: int) -> ChangeReport:
        """Make a delayed or retrying job due at a time in milliseconds; an empty ``due`` means now."""
        for _ in range(_TRIES):
            found = (await Search(self._reader, job_id, limit=search_limit).run()).found
            if not found:
                break
            found.sort(key=lambda job: job.phase not in {JobPhase.DELAYED, JobPhase.RETRYING})
            report = await self.move_found(found[0], due)
            if report.change is not JobChange.GONE:
                return report
        return ChangeReport(job_id, JobChange.GONE)

    async def cancel_found(self, job: JobReport, list_name: str = "") -> ChangeReport:
        """Cancel a job at the place where it was found; GONE if it has moved on.

        ``list_name`` is the list of a parked or waiting message. By default its event or its key names the list.
        """
        keys = self._keys
        records = (keys.cancelled(job.id), keys.job(job.id), keys.jobs(JobState.CANCELLED.value))
        kept = (RECORD_KEPT_MS, keys.jobs(""))
        match job.phase:
            case JobPhase.DELAYED | JobPhase.RETRYING | JobPhase.PARKED | JobPhase.BEHIND:
                place, kind = self._place_of(job)
                removed = await self._reader.call(
                    "job_cancel_delayed",
                    (list_name or place, *records, keys.stream, keys.order),
                    (job.raw_payload, kind, job.phase.value, job.event, job.group, job.id, *kept),
                )
                change = JobChange.CANCELLED if removed else JobChange.GONE
            case JobPhase.WAITING | JobPhase.RUNNING:
                only = None if job.group else await self._reader.group(required=True)
                group = job.group if only is None else only.name
                answer = await self._reader.call(
                    "job_cancel_entry",
                    (keys.stream, keys.cancel, keys.wake, *records, keys.order),
                    (job.place, group, job.event, job.id, *kept),
                )
                change = JobChange(answer.decode())
            case _:
                return ChangeReport(job.id, JobChange.REFUSED, job.phase, _IS_DEAD)
        return ChangeReport(job.id, change, job.phase)

    async def move_found(self, job: JobReport, due: str) -> ChangeReport:
        """Move a job from the place where it was found; an empty ``due`` means now."""
        if job.phase not in {JobPhase.DELAYED, JobPhase.RETRYING}:
            note = f"it is {job.phase}: only a delayed or retrying job has a time that can be changed"
            return ChangeReport(job.id, JobChange.REFUSED, job.phase, note)
        keys = (self._keys.stream, self._keys.delayed, self._keys.wake, self._keys.order)
        moved = await self._reader.call("job_move", keys, (job.raw_payload, due))
        return ChangeReport(job.id, JobChange.MOVED if moved else JobChange.GONE, job.phase)

    async def due_ms(self, delay_s: float | None, at: float | datetime | None = None) -> int:
        """Return the due time in ``delay_s`` seconds from now, by the server's clock, or the moment ``at``."""
        if (delay_s is None) == (at is None):
            raise ConfigurationError("give delay_s or at: one of them")
        if delay_s is not None:
            return await self._reader.now_ms() + round(require_seconds("delay_s", delay_s, zero_allowed=True) * 1000)
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ConfigurationError("at must be a datetime with a time zone, e.g. datetime.now(UTC)")
            at = at.timestamp()
        return round(require_seconds("at", at, zero_allowed=True) * 1000)

    async def edit(
        self, dead_id: str, data: Mapping[str, Any] | None = None, *, group: str | None = None
    ) -> ChangeReport:
        """Retry a dead letter with all attempts, for its original group or another.

        Args:
            dead_id: Id of the dead letter (``place`` of a dead job).
            data: Replaces its data; None keeps it.
            group: The consumer group to retry for.

        Raises:
            OperatorError: Its group does not exist.
            PayloadError: ``data`` cannot be encoded as JSON.
        """
        dead = await self._reader.dead_letters.show(dead_id)
        if dead is None:
            return ChangeReport(dead_id, JobChange.GONE)
        record = dead.record
        if not record.replayable or record.payload is None:
            return ChangeReport(record.id, JobChange.REFUSED, JobPhase.DEAD, "it was not a message in the first place")
        wanted = group or record.group
        payload = replayed(record.payload, group=wanted)
        if data is not None:
            _require_data(data, self._keys.stream)
            payload["data"] = dict(data)
        names, entry_id = (self._keys.stream, self._keys.dead, self._keys.order), parse_dead_id(dead_id).entry_id
        answer = await self._reader.call("job_edit", names, (entry_id, wanted, encode_raw(payload)))
        if answer == 2:  # noqa: PLR2004 - see the script
            raise OperatorError(
                f"stream {printable(self._keys.stream)!r} has no group {printable(wanted)!r}: the dead letter stays. "
                "Name the group that shall handle it"
            )
        return ChangeReport(record.id, JobChange.MOVED if answer else JobChange.GONE, JobPhase.DEAD)

    async def _wait_for_decision(self, job_id: str, timeout_s: float) -> ChangeReport:
        ends_at = time.monotonic() + timeout_s
        pause_s = _POLL_S
        while (change := await self._decision(job_id)) is None:
            if time.monotonic() >= ends_at:
                note = "its worker has not decided yet; the request stays valid, even if the worker dies"
                return ChangeReport(job_id, JobChange.REQUESTED, JobPhase.RUNNING, note)
            await asyncio.sleep(min(pause_s, max(0.0, ends_at - time.monotonic())))
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
        return ChangeReport(job_id, change, JobPhase.RUNNING)

    async def _ended(self, search: Search) -> ChangeReport:
        change = await self._decision(search.id)
        if change is not None:
            return ChangeReport(search.id, change)
        if search.found:
            return ChangeReport(search.id, JobChange.REFUSED, JobPhase.DEAD, _IS_DEAD)
        note = "" if search.complete else "the search ended at its limit: the job may be further back"
        return ChangeReport(search.id, JobChange.GONE, None, note)

    def _place_of(self, job: JobReport) -> tuple[str, str]:
        if job.phase is JobPhase.PARKED:
            return self._keys.parked_event(job.event), "parked"
        if job.phase is JobPhase.BEHIND:
            return self._keys.waiting(job.place), "behind"
        return self._keys.delayed, "delayed"

    async def _decision(self, job_id: str) -> JobChange | None:
        """Return the result of a cancellation request; None while it is open, or if there was none."""
        names = (self._keys.stream, self._keys.cancel, self._keys.cancelled(job_id))
        state = await self._reader.call("job_decision", names, (job_id, RECORD_KEPT_MS))
        return JobChange(state.decode()) if state and state.decode() in _SETTLED else None


def _require_data(data: Mapping[str, Any], stream: str) -> None:
    try:
        encode_payload(data, max_bytes=_MAX_BYTES)
    except CodecError as error:
        refused = error
    else:
        return
    raise refused.as_payload_error(
        f"edit of a job in stream {printable(stream)!r}: data", stream=stream, command="edit"
    )
