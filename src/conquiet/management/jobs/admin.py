"""``JobAdmin``: list, show and change the jobs of one stream, in all its partitions.

A job is searched in one partition after the other. A list returns the jobs of the first partition, then of the next;
its cursor names the partition. The id of a dead letter names its partition, too.

See docs/decisions/0051.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive, require_selection, require_text
from conquiet.errors import ConfigurationError
from conquiet.management.jobs.bulk import BulkReport, BulkRequest, BulkRunner
from conquiet.management.jobs.control import ChangeReport, JobChange, JobControl
from conquiet.management.jobs.history import join_facts, phase_rank
from conquiet.management.jobs.models import EVERY_JOB, BulkAction, JobFilter, JobHistory, JobList, JobPhase, JobReport
from conquiet.management.jobs.reader import SCAN_LIMIT, JobReader
from conquiet.management.jobs.reset import ResetReport, require_confirmation, reset
from conquiet.management.jobs.search import SEARCH_LIMIT, Search
from conquiet.processor.envelope import new_id
from conquiet.processor.partition_layout import partition_names
from conquiet.redis_transport.client import AsyncClient, require_raw_client

E = TypeVar("E", bound=StrEnum)


class _Partition:
    """Reads and changes the jobs of one partition, which is a stream."""

    def __init__(self, client: AsyncClient, stream: str, group: str | None, index: int = 0) -> None:
        self.reader = JobReader(client, stream, group, partition=index)
        self.control = JobControl(self.reader)
        self.bulk = BulkRunner(self.reader, self.control)

    async def show(self, job_id: str, *, with_data: bool, search_limit: int) -> JobHistory:
        search = await Search(self.reader, job_id, limit=search_limit, with_data=with_data).run()
        keys = self.reader.keys
        names = (keys.job(job_id), keys.cancelled(job_id), keys.progress(job_id))
        state, _, cancelled, _, progress, _ = await self.reader.call("job_facts", names, ())
        has_result = await self.reader.send("EXISTS", keys.result(job_id))
        return join_facts(search, state, cancelled, progress, has_result=bool(has_result))

    async def dead_letter(self, dead_id: str) -> JobReport | None:
        dead = await self.reader.dead_letters.show(dead_id)
        if dead is None:
            return None
        return self.reader.decoder(self.reader.given or "", with_data=True).dead(dead, await self.reader.now_ms())


class JobAdmin:
    """Lists, shows and changes the jobs of one stream, in all its partitions.

    Args:
        client: A client without retries, such as ``clone_async`` returns. The caller closes it.
        stream: The stream, or one of its partitions. Each call reads the number of partitions.
        group: The consumer group of the jobs. Optional if the stream has only one.

    Raises:
        ConfigurationError: The client was created with ``decode_responses=True``.
    """

    def __init__(self, client: AsyncClient, stream: str, *, group: str | None = None) -> None:
        require_raw_client(client)
        self._client = client
        self._stream = require_text("stream", stream)
        self._group = group

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
        phase = _named(JobPhase, phase)
        require_selection(where, JobFilter)
        partitions = await self._partitions()
        at, inner = _position(cursor, len(partitions))
        jobs: list[JobReport] = []
        scanned = 0
        left = require_positive("limit", limit)
        while True:
            page = await partitions[at].reader.list(phase, where, cursor=inner, limit=left, with_data=with_data)
            jobs += page.jobs
            scanned += page.scanned
            left -= len(page.jobs)
            if page.cursor is not None:
                return JobList(tuple(jobs), f"{at}/{page.cursor}", scanned)
            at, inner = at + 1, None
            if at == len(partitions):
                return JobList(tuple(jobs), None, scanned)
            if left <= 0 or scanned >= SCAN_LIMIT:
                return JobList(tuple(jobs), f"{at}/", scanned)

    async def show(self, job_id: str, *, with_data: bool = False, search_limit: int = SEARCH_LIMIT) -> JobHistory:
        """Return the history of one job: its places, states, error, cancellation and progress.

        There is no index: the server searches the messages in steps. ``search_limit`` bounds the number of messages
        in each place; ``complete`` is False if the limit was reached.
        """
        histories = [
            await one.show(job_id, with_data=with_data, search_limit=search_limit) for one in await self._partitions()
        ]
        known = [history for history in histories if history.phase is not None]
        found = min(known, key=_rank, default=histories[0])
        complete = all(history.complete for history in histories)
        return replace(found, complete=complete, scanned=sum(history.scanned for history in histories))

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
        return await self._first(lambda one: one.control.cancel(job_id, timeout_s, search_limit))

    async def run_now(self, job_id: str, *, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Move a delayed or retrying job to its stream now, with its attempt number."""
        return await self._first(lambda one: one.control.move(job_id, "", search_limit))

    async def reschedule(
        self,
        job_id: str,
        *,
        delay_s: float | None = None,
        at: float | datetime | None = None,
        search_limit: int = SEARCH_LIMIT,
    ) -> ChangeReport:
        """Make a delayed or retrying job due in ``delay_s`` seconds, or ``at`` a time (epoch, aware datetime)."""

        async def move(one: _Partition) -> ChangeReport:
            return await one.control.move(job_id, str(await one.control.due_ms(delay_s, at)), search_limit)

        return await self._first(move)

    async def edit_and_retry(
        self, dead_id: str, data: Mapping[str, Any] | None = None, *, group: str | None = None
    ) -> ChangeReport:
        """Retry a dead letter, with other data if given. Of two concurrent calls one succeeds.

        Args:
            dead_id: Id of the dead letter: ``place`` of a dead job.
            data: Replaces its data.
            group: The consumer group to retry for, instead of its original one.
        """
        return await self._first(lambda one: one.control.edit(dead_id, data, group=group))

    async def dead_letter(self, dead_id: str) -> JobReport | None:
        """Return a dead letter with its data for editing; None if it does not exist.

        Args:
            dead_id: Id of the dead letter: ``place`` of a dead job.
        """
        for one in await self._partitions():
            found = await one.dead_letter(dead_id)
            if found is not None:
                return found
        return None

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
        the same call with the same ``name`` continues the run of an earlier process and changes no job twice. Each
        partition stores its progress, and they are changed one after the other.

        Args:
            action: Change of each job.
            phase: Phase of the jobs.
            where: Filter of the jobs.
            name: Name of the run, to resume it; generated by default, and part of every report.
            dry_run: Only count. Nothing is stored.
            delay_s: For reschedule: seconds until the jobs are due.
            rate_per_s: Most changes per second.
            limit: Most jobs, of all partitions together.
            on_progress: Called with the report after every step.
        """
        require_selection(where, JobFilter, on_progress=on_progress)
        request = BulkRequest(
            action=_named(BulkAction, action),
            phase=_named(JobPhase, phase),
            where=where,
            name=name or new_id(),
            dry_run=dry_run,
            delay_s=delay_s,
            limit=limit,
        )
        total: BulkReport | None = None
        partitions = await self._partitions()
        for at, one in enumerate(partitions):
            before, is_last = total, at == len(partitions) - 1
            # A resumed run skips the partitions that it has completed.
            report = None if is_last or dry_run else await one.bulk.progress(request.name)
            if report is None or not report.done:
                note = None if on_progress is None else _adding(on_progress, before, is_last=is_last)
                report = await one.bulk.run(request, rate_per_s, note)
            total = _sum(before, report, done=report.done and is_last)
            if request.limit is not None:
                if report.matched >= request.limit:
                    return replace(total, done=True)
                request = replace(request, limit=request.limit - report.matched)
        assert total is not None  # noqa: S101 - a stream has at least one partition
        return total

    async def bulk_progress(self, name: str) -> BulkReport | None:
        """Return the progress of a bulk change of any process; None if there is none of that name."""
        reports = [await one.bulk.progress(name) for one in await self._partitions()]
        total: BulkReport | None = None
        for report in reports:
            if report is not None:
                total = _sum(total, report, done=all(one is not None and one.done for one in reports))
        return total

    async def reset(self, *, confirm: str | None = None, dry_run: bool = False) -> ResetReport:
        """Delete waiting, delayed, parked and dead jobs of every group. Running jobs are not changed.

        Args:
            confirm: The name of the stream, as confirmation.
            dry_run: Only count.

        Raises:
            ConfigurationError: ``confirm`` is not the name of the stream. Nothing was deleted.
        """
        if not dry_run:
            require_confirmation(self._stream, confirm)
        reports = [await reset(one.reader, dry_run=dry_run) for one in await self._partitions()]
        return ResetReport(
            stream=self._stream,
            entries=sum(one.entries for one in reports),
            behind=sum(one.behind for one in reports),
            delayed=sum(one.delayed for one in reports),
            parked=sum(one.parked for one in reports),
            dead=sum(one.dead for one in reports),
            dry_run=dry_run,
        )

    async def _first(self, change: Callable[[_Partition], Awaitable[ChangeReport]]) -> ChangeReport:
        """Return the report of the first partition that has the job, else the report of the last partition."""
        note = ""
        for one in await self._partitions():
            report = await change(one)
            if report.change is not JobChange.GONE:
                return report
            note = note or report.note
        return replace(report, note=note)

    async def _partitions(self) -> Sequence[_Partition]:
        names = await partition_names(self._client, self._stream)
        return [_Partition(self._client, name, self._group, index) for index, name in enumerate(names)]


def _named(kind: type[E], value: E | str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise ConfigurationError(f"{kind.__name__} is one of {', '.join(kind)}; got {printable(value)!r}") from None


def _position(cursor: str | None, partitions: int) -> tuple[int, str | None]:
    """Return the partition of a cursor, and the cursor within it."""
    if cursor is None:
        return 0, None
    at, slash, inner = cursor.partition("/")
    if not (slash and at.isdecimal() and int(at) < partitions):
        raise ConfigurationError(f"cursor {printable(cursor)!r} is not one of this list")
    return int(at), inner or None


def _rank(history: JobHistory) -> int:
    """Return the rank of a history: a job with a place comes before a job that has ended."""
    return min((phase_rank(place) for place in history.places), default=len(JobPhase))


def _sum(one: BulkReport | None, other: BulkReport, *, done: bool) -> BulkReport:
    if one is None:
        return replace(other, done=done)
    return replace(
        other,
        done=done,
        scanned=one.scanned + other.scanned,
        matched=one.matched + other.matched,
        changed=one.changed + other.changed,
        requested=one.requested + other.requested,
        gone=one.gone + other.gone,
        refused=one.refused + other.refused,
    )


def _adding(
    report: Callable[[BulkReport], None], before: BulkReport | None, *, is_last: bool
) -> Callable[[BulkReport], None]:
    return lambda so_far: report(_sum(before, so_far, done=so_far.done and is_last))
