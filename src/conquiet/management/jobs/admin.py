"""``JobAdmin``: what an operator does about the jobs of one stream."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from conquiet.management.jobs.bulk import BulkAction, BulkReport, BulkRunner
from conquiet.management.jobs.control import ChangeReport, JobControl
from conquiet.management.jobs.decoding import JobDecoder
from conquiet.management.jobs.models import (
    EVERY_JOB,
    Cancellation,
    JobAttempt,
    JobFilter,
    JobList,
    JobPhase,
    JobProgress,
    JobReport,
    JobStory,
)
from conquiet.management.jobs.reader import JobReader
from conquiet.management.jobs.recorded import RecordedStory, read_story
from conquiet.management.jobs.reset import ResetReport, reset
from conquiet.management.jobs.search import SEARCH_LIMIT, JobFinder, Search
from conquiet.processor.envelope import new_id
from conquiet.processor.jobs import JobState
from conquiet.redis_transport.client import AsyncClient

_ENDED = {JobState.SUCCEEDED.value: JobPhase.SUCCEEDED, "cancelled": JobPhase.CANCELLED}


class JobAdmin:
    """Lists, shows and changes the jobs of one stream.

    Args:
        client: A client without retries, such as ``clone_async`` makes. It stays the caller's.
        stream: The stream.
        group: The consumer group whose jobs are meant. May be left out where the stream has one.
    """

    def __init__(self, client: AsyncClient, stream: str, *, group: str | None = None) -> None:
        self._reader = JobReader(client, stream, group)
        self._finder = JobFinder(self._reader)
        self._control = JobControl(self._reader, self._finder)
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

        One call reads at most ``SCAN_LIMIT`` messages. So a page may be empty and have a cursor: go on until the cursor
        is None.

        Raises:
            ConfigurationError: The phase cannot be listed, the cursor is of another list, or the stream has several
                groups and none was named.
            QueueError: The server refused or did not answer.
        """
        return await self._reader.list(JobPhase(phase), where, cursor=cursor, limit=limit, with_data=with_data)

    async def show(self, job_id: str, *, with_data: bool = False, search_limit: int = SEARCH_LIMIT) -> JobStory:
        """Return everything that is known of one job: its places, states, error, cancellation and progress.

        Without an index a job is found by looking at messages, on the server and in steps. ``search_limit`` bounds
        them in each place; ``complete`` says whether all were looked at.
        """
        search = await self._finder.find(job_id, search_limit=search_limit, with_data=with_data)
        names = (self._keys.job(job_id), self._keys.cancelled(job_id), self._keys.progress(job_id))
        state, _, cancelled, _, progress, _ = await self._reader.call("job_facts", names, ())
        has_result = await self._reader.call("job_exists", (self._keys.result(job_id),), ())
        return _story(search, _texts(state), _texts(cancelled), _texts(progress), has_result=bool(has_result))

    async def cancel(self, job_id: str, *, timeout_s: float = 10.0, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Cancel one job. Either it has its effect or it is cancelled, and the report says which.

        A job that waits is removed at once, by one step on the server. A job that runs is decided by its worker: an
        ``async def`` handler is cancelled, a plain function may check ``ctx.cancelled``. One that raises is cancelled,
        one that returns has had its effect. With an inbox the database decides, also if the worker is killed meanwhile.

        Args:
            job_id: The message's id.
            timeout_s: How long to wait for the worker. REQUESTED is the answer after that, and the request stands.
            search_limit: Most messages that are looked at in each place.
        """
        return await self._control.cancel(job_id, timeout_s=timeout_s, search_limit=search_limit)

    async def run_now(self, job_id: str, *, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Bring a delayed or retrying job to its stream now, as the attempt that it waits for."""
        return await self._control.run_now(job_id, search_limit=search_limit)

    async def reschedule(
        self,
        job_id: str,
        *,
        delay_s: float | None = None,
        at: float | datetime | None = None,
        search_limit: int = SEARCH_LIMIT,
    ) -> ChangeReport:
        """Let a delayed or retrying job be due in ``delay_s`` seconds, or ``at`` a moment (epoch, aware datetime)."""
        return await self._control.reschedule(job_id, delay_s=delay_s, at=at, search_limit=search_limit)

    async def edit_and_retry(
        self, dead_id: str, data: Mapping[str, Any] | None = None, *, group: str | None = None
    ) -> ChangeReport:
        """Retry a dead letter, with other data if it is given. Of two callers at once, one does.

        Args:
            dead_id: The dead letter's id: ``place`` of a dead job.
            data: In place of its data.
            group: The consumer group to bring it back for, in place of the one it died in.
        """
        return await self._control.edit(dead_id, data, group=group)

    async def dead_letter(self, dead_id: str) -> JobReport | None:
        """Return a dead letter with its data, as it may be edited; None if it is gone.

        Args:
            dead_id: The dead letter's id: ``place`` of a dead job.
        """
        dead = await self._reader.dead_letters.show(dead_id)
        if dead is None:
            return None
        decoder = JobDecoder(self._keys.stream, self._reader.given or "", with_data=True)
        return decoder.dead(dead, await self._reader.now_ms())

    async def bulk(  # noqa: PLR0913 - each an option of its own
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
        """Cancel, run now, reschedule or retry all jobs of a phase that match. Running jobs are asked, not waited for.

        Jobs that are emitted after it began are left alone. The progress is kept on the server for seven days: the same
        call with the same ``name`` goes on where an earlier process ended, and changes no job twice.

        Args:
            action: What is done to each job.
            phase: Where the jobs are.
            where: Which of them.
            name: Name of the run, to resume it; made up if left out, and in every report.
            dry_run: Only count. Nothing is kept.
            delay_s: For reschedule: due in so many seconds from now.
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
        """Return how far a bulk change is, also one of another process; None if there is none of that name."""
        return await self._bulk.progress(name)

    async def reset(self, *, confirm: str | None = None, dry_run: bool = False) -> ResetReport:
        """Delete what waits, is delayed, parked or dead, for every group. Jobs that run are left to their workers.

        Args:
            confirm: The stream's name, typed again.
            dry_run: Only count.

        Raises:
            ConfigurationError: It is not confirmed. Nothing was deleted.
        """
        return await reset(self._reader, confirm=confirm, dry_run=dry_run)


def _story(
    search: Search,
    state: Mapping[str, str],
    cancelled: Mapping[str, str],
    progress: Mapping[str, str],
    *,
    has_result: bool,
) -> JobStory:
    places = tuple(sorted(search.found, key=liveliness_of))
    story = read_story(state.get("story", ""))
    cancellation = _cancellation(cancelled)
    if places and places[0].phase is not JobPhase.DEAD:
        phase: JobPhase | None = places[0].phase
    elif cancellation is not None and cancellation.state == "cancelled":
        phase = JobPhase.CANCELLED
    else:
        phase = _ENDED.get(state.get("state", "")) or (places[0].phase if places else None)
    return JobStory(
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
        attempts=_attempts(places, story, state),
        caused_by=next((one.caused_by for one in places if one.caused_by is not None), story.caused_by),
        caused=story.caused,
        event=next((one.event for one in places if one.event), state.get("event", "")),
    )


def _attempts(places: Sequence[JobReport], story: RecordedStory, state: Mapping[str, str]) -> tuple[JobAttempt, ...]:
    """Return the attempts of a job: what the message itself carries is newer than what was recorded of it."""
    failed = next((one.attempts for one in places if one.attempts), story.failed)
    if state.get("state") != JobState.SUCCEEDED.value:
        return failed
    ended_ms = int(state.get(f"{JobState.SUCCEEDED.value}_ms", "0"))
    return (*failed, JobAttempt(int(state.get("attempt", "1")), ended_ms, story.duration_ms))


def liveliness_of(job: JobReport) -> int:
    """Return the place of a job's phase among the phases: the one that is at work comes first."""
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
