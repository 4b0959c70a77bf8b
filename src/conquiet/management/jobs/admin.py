"""``JobAdmin``: list, show and change the jobs of one stream."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from conquiet.core.validation import require_seconds
from conquiet.management.jobs.bulk import BulkAction, BulkReport, BulkRunner
from conquiet.management.jobs.control import ChangeReport, JobChange, JobControl
from conquiet.management.jobs.decoding import JobDecoder
from conquiet.management.jobs.models import (
    EVERY_JOB,
    Cancellation,
    JobAttempt,
    JobFilter,
    JobHistory,
    JobList,
    JobPhase,
    JobProgress,
    JobReport,
)
from conquiet.management.jobs.reader import JobReader
from conquiet.management.jobs.recorded import RecordedHistory, read_recorded
from conquiet.management.jobs.reset import ResetReport, reset
from conquiet.management.jobs.search import SEARCH_LIMIT, JobFinder, Search
from conquiet.processor.envelope import new_id
from conquiet.processor.jobs import JobState
from conquiet.redis_transport.client import AsyncClient

_TRIES = 5
_POLL_S = 0.05
_LONGEST_POLL_S = 1.0
_ENDED = {JobState.SUCCEEDED.value: JobPhase.SUCCEEDED, "cancelled": JobPhase.CANCELLED}


class JobAdmin:
    """Lists, shows and changes the jobs of one stream.

    Args:
        client: A client without retries, such as ``clone_async`` returns. The caller closes it.
        stream: The stream.
        group: The consumer group of the jobs. Optional if the stream has only one.
    """

    def __init__(self, client: AsyncClient, stream: str, *, group: str | None = None) -> None:
        self._reader = JobReader(client, stream, group)
        self._finder = JobFinder(self._reader)
        self._control = JobControl(self._reader)
        self._bulk = BulkRunner(self._reader, self._control)
        self._keys = self._reader.keys

    async def list(
        self,
        phase: JobPhase | str,
        where: JobFilter = EVERY_JOB,
        *,
        cursor: str | None = None,
        limit: int = 100,
        with_data: bool = False,
    ) -> JobList:
        """Return up to ``limit`` jobs of a phase that match, and a cursor for the next page.

        One call reads at most ``SCAN_LIMIT`` messages. A page may therefore be empty and have a cursor: continue until
        the cursor is None.

        Raises:
            ConfigurationError: The phase cannot be listed, the cursor belongs to another list, or the stream has
                several groups and none was named.
            QueueError: The server returned an error or did not reply.
        """
        return await self._reader.list(JobPhase(phase), where, cursor=cursor, limit=limit, with_data=with_data)

    async def show(self, job_id: str, *, with_data: bool = False, search_limit: int = SEARCH_LIMIT) -> JobHistory:
        """Return the history of one job: its places, states, error, cancellation and progress.

        There is no index: the server searches the messages in steps. ``search_limit`` bounds the number of messages
        in each place; ``complete`` is False if the limit was reached.
        """
        search = await self._finder.find(job_id, search_limit=search_limit, with_data=with_data)
        names = (self._keys.job(job_id), self._keys.cancelled(job_id), self._keys.progress(job_id))
        state, _, cancelled, _, progress, _ = await self._reader.call("job_facts", names, ())
        has_result = await self._reader.send("EXISTS", self._keys.result(job_id))
        return _history(search, _texts(state), _texts(cancelled), _texts(progress), has_result=bool(has_result))

    async def cancel(self, job_id: str, *, timeout_s: float = 10.0, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Cancel one job. It either has its effect or is cancelled, and the report states which.

        A waiting job is removed immediately, by one script. For a running job its worker decides: an ``async def``
        handler is cancelled, a plain function may check ``ctx.cancelled``. A job is cancelled if its handler raises; if
        the handler returns, the job has had its effect. With an inbox the database decides, even if the worker is
        killed.

        Args:
            job_id: The message's id.
            timeout_s: Longest wait for the worker. After that the report is REQUESTED, and the request remains.
            search_limit: Most messages that are searched in each place.
        """
        require_seconds("timeout_s", timeout_s, zero_allowed=True)
        for _ in range(_TRIES):
            search = await self._finder.find(job_id, search_limit=search_limit)
            alive = [job for job in search.found if job.phase is not JobPhase.DEAD]
            if not alive:
                return await self._ended(job_id, search.found, complete=search.complete)
            reports = [await self._control.cancel_found(job) for job in alive]
            if any(report.change is JobChange.REQUESTED for report in reports):
                return await self._decision(job_id, timeout_s)
            report = min(reports, key=lambda one: list(JobChange).index(one.change))
            if report.change is not JobChange.GONE:
                return report
        return ChangeReport(job_id, JobChange.GONE)

    async def _decision(self, job_id: str, timeout_s: float) -> ChangeReport:
        ends_at = time.monotonic() + timeout_s
        pause_s = _POLL_S
        while (change := await self._control.decision(job_id)) is None:
            if time.monotonic() >= ends_at:
                note = "its worker has not decided yet; the request stays valid, even if the worker dies"
                return ChangeReport(job_id, JobChange.REQUESTED, JobPhase.RUNNING, note)
            await asyncio.sleep(min(pause_s, max(0.0, ends_at - time.monotonic())))
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
        return ChangeReport(job_id, change, JobPhase.RUNNING)

    async def _ended(self, job_id: str, found: Sequence[JobReport], *, complete: bool) -> ChangeReport:
        change = await self._control.decision(job_id)
        if change is not None:
            return ChangeReport(job_id, change)
        if found:
            return ChangeReport(job_id, JobChange.REFUSED, JobPhase.DEAD, "it is dead: retry or discard it")
        note = "" if complete else "the search ended at its limit: the job may be further back"
        return ChangeReport(job_id, JobChange.GONE, None, note)

    async def run_now(self, job_id: str, *, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Move a delayed or retrying job to its stream now, with its attempt number."""
        return await self._move(job_id, "", search_limit)

    async def reschedule(
        self,
        job_id: str,
        *,
        delay_s: float | None = None,
        at: float | datetime | None = None,
        search_limit: int = SEARCH_LIMIT,
    ) -> ChangeReport:
        """Make a delayed or retrying job due in ``delay_s`` seconds, or ``at`` a time (epoch, aware datetime)."""
        return await self._move(job_id, str(await self._control.due_ms(delay_s, at)), search_limit)

    async def _move(self, job_id: str, due: str, search_limit: int) -> ChangeReport:
        for _ in range(_TRIES):
            search = await self._finder.find(job_id, search_limit=search_limit)
            if not search.found:
                break
            found = sorted(search.found, key=lambda job: job.phase not in {JobPhase.DELAYED, JobPhase.RETRYING})
            report = await self._control.move_found(found[0], due)
            if report.change is not JobChange.GONE:
                return report
        return ChangeReport(job_id, JobChange.GONE)

    async def edit_and_retry(
        self, dead_id: str, data: Mapping[str, Any] | None = None, *, group: str | None = None
    ) -> ChangeReport:
        """Retry a dead letter, with other data if given. Of two concurrent calls one succeeds.

        Args:
            dead_id: Id of the dead letter: ``place`` of a dead job.
            data: Replaces its data.
            group: The consumer group to retry for, instead of its original one.
        """
        return await self._control.edit(dead_id, data, group=group)

    async def dead_letter(self, dead_id: str) -> JobReport | None:
        """Return a dead letter with its data for editing; None if it does not exist.

        Args:
            dead_id: Id of the dead letter: ``place`` of a dead job.
        """
        dead = await self._reader.dead_letters.show(dead_id)
        if dead is None:
            return None
        decoder = JobDecoder(self._keys.stream, self._reader.given or "", with_data=True)
        return decoder.dead(dead, await self._reader.now_ms())

    async def bulk(  # noqa: PLR0913 - independent options
        self,
        action: BulkAction | str,
        phase: JobPhase | str,
        where: JobFilter = EVERY_JOB,
        *,
        name: str | None = None,
        dry_run: bool = False,
        delay_s: float | None = None,
        rate_per_s: float | None = None,
        limit: int | None = None,
        on_progress: Callable[[BulkReport], None] | None = None,
    ) -> BulkReport:
        """Cancel, run now, reschedule or retry all matching jobs of a phase. Does not wait for running jobs.

        Jobs emitted after the start of the run are not changed. The progress is stored on the server for seven days:
        the same call with the same ``name`` continues the run of an earlier process and changes no job twice.

        Args:
            action: Change of each job.
            phase: Phase of the jobs.
            where: Filter of the jobs.
            name: Name of the run, to resume it; generated by default, and part of every report.
            dry_run: Only count. Nothing is stored.
            delay_s: For reschedule: seconds until the jobs are due.
            rate_per_s: Most changes per second.
            limit: Most jobs.
            on_progress: Called with the report after every step.
        """
        return await self._bulk.run(
            BulkAction(action),
            JobPhase(phase),
            where,
            name=name or new_id(),
            dry_run=dry_run,
            delay_s=delay_s,
            rate_per_s=rate_per_s,
            limit=limit,
            on_progress=on_progress,
        )

    async def bulk_progress(self, name: str) -> BulkReport | None:
        """Return the progress of a bulk change of any process; None if there is none of that name."""
        return await self._bulk.progress(name)

    async def reset(self, *, confirm: str | None = None, dry_run: bool = False) -> ResetReport:
        """Delete waiting, delayed, parked and dead jobs of every group. Running jobs are not changed.

        Args:
            confirm: The name of the stream, as confirmation.
            dry_run: Only count.

        Raises:
            ConfigurationError: ``confirm`` is not the name of the stream. Nothing was deleted.
        """
        return await reset(self._reader, confirm=confirm, dry_run=dry_run)


def _history(
    search: Search,
    state: Mapping[str, str],
    cancelled: Mapping[str, str],
    progress: Mapping[str, str],
    *,
    has_result: bool,
) -> JobHistory:
    places = tuple(sorted(search.found, key=phase_rank))
    history = read_recorded(state.get("story", ""))
    cancellation = _cancellation(cancelled)
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
        progress=_progress(progress),
        has_result=has_result,
        complete=search.complete,
        scanned=search.scanned,
        attempts=_attempts(places, history, state),
        caused_by=next((one.caused_by for one in places if one.caused_by is not None), history.caused_by),
        caused=history.caused,
        event=next((one.event for one in places if one.event), state.get("event", "")),
    )


def _attempts(
    places: Sequence[JobReport], history: RecordedHistory, state: Mapping[str, str]
) -> tuple[JobAttempt, ...]:
    """Return the attempts of a job. The attempts in the message are newer than the recorded ones."""
    failed = next((one.attempts for one in places if one.attempts), history.failed)
    if state.get("state") != JobState.SUCCEEDED.value:
        return failed
    ended_ms = int(state.get(f"{JobState.SUCCEEDED.value}_ms", "0"))
    return (*failed, JobAttempt(int(state.get("attempt", "1")), ended_ms, history.duration_s))


def phase_rank(job: JobReport) -> int:
    """Return the rank of a job's phase: RUNNING comes first, DEAD last."""
    order = (
        JobPhase.RUNNING,
        JobPhase.WAITING,
        JobPhase.BEHIND,
        JobPhase.PARKED,
        JobPhase.RETRYING,
        JobPhase.DELAYED,
        JobPhase.DEAD,
    )
    return order.index(job.phase)


def _cancellation(facts: Mapping[str, str]) -> Cancellation | None:
    if not facts:
        return None
    return Cancellation(
        state=facts.get("state", ""),
        at_ms=int(facts.get("at_ms", "0")),
        event=facts.get("event", ""),
        group=facts.get("group", ""),
        while_in=facts.get("while_in", ""),
    )


def _progress(facts: Mapping[str, str]) -> JobProgress | None:
    if not facts:
        return None
    return JobProgress(float(facts["fraction"]), facts.get("text", ""), int(facts.get("at_ms", "0")))


def _texts(reply: Any) -> dict[str, str]:
    return {
        name.decode(): value.decode(errors="backslashreplace")
        for name, value in zip(reply[::2], reply[1::2], strict=True)
    }
