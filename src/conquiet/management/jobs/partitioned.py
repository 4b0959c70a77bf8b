"""``PartitionedJobs``: access the jobs of all partitions of a stream as one stream.

A job is searched in one partition after the other. A list returns the jobs of the first partition, then of the next;
its cursor names the partition. The ids of dead letters are unique within a partition only. If two partitions have the
same id, the first one found is used.

See docs/decisions/0051.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive
from conquiet.errors import ConfigurationError
from conquiet.management.jobs.admin import JobAdmin, phase_rank
from conquiet.management.jobs.bulk import BulkAction, BulkReport
from conquiet.management.jobs.control import ChangeReport, JobChange
from conquiet.management.jobs.models import EVERY_JOB, JobFilter, JobHistory, JobList, JobPhase, JobReport
from conquiet.management.jobs.reader import SCAN_LIMIT
from conquiet.management.jobs.reset import ResetReport, require_confirmation
from conquiet.management.jobs.search import SEARCH_LIMIT
from conquiet.processor.envelope import new_id
from conquiet.processor.partition_layout import partition_names
from conquiet.redis_transport.client import AsyncClient


class PartitionedJobs:
    """Lists, shows and changes the jobs of a stream, partitioned or not; see ``JobAdmin``.

    Args:
        client: A client without retries. The caller closes it.
        stream: The stream's name. Each call reads the number of its partitions.
        group: The consumer group of the jobs. Optional if the stream has only one.
    """

    def __init__(self, client: AsyncClient, stream: str, *, group: str | None = None) -> None:
        self._client = client
        self._stream = stream
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
        """Return up to ``limit`` matching jobs of a phase, by partition, and a cursor. See ``JobAdmin.list``."""
        partitions = await self._partitions()
        if len(partitions) == 1:
            return await partitions[0].list(phase, where, cursor=cursor, limit=limit, with_data=with_data)
        at, inner = _position(cursor, len(partitions))
        jobs: list[JobReport] = []
        scanned = 0
        left = require_positive("limit", limit)
        while True:
            page = await partitions[at].list(phase, where, cursor=inner, limit=left, with_data=with_data)
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
        """Return the history of one job. See ``JobAdmin.show``."""
        histories = [
            await one.show(job_id, with_data=with_data, search_limit=search_limit) for one in await self._partitions()
        ]
        known = [history for history in histories if history.phase is not None]
        found = min(known, key=_rank, default=histories[0])
        complete, scanned = (
            all(history.complete for history in histories),
            sum(history.scanned for history in histories),
        )
        return replace(found, complete=complete, scanned=scanned)

    async def cancel(self, job_id: str, *, timeout_s: float = 10.0, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Cancel one job. See ``JobAdmin.cancel``."""
        return await self._first(lambda one: one.cancel(job_id, timeout_s=timeout_s, search_limit=search_limit))

    async def run_now(self, job_id: str, *, search_limit: int = SEARCH_LIMIT) -> ChangeReport:
        """Move a delayed or retrying job to its stream now. See ``JobAdmin.run_now``."""
        return await self._first(lambda one: one.run_now(job_id, search_limit=search_limit))

    async def reschedule(
        self,
        job_id: str,
        *,
        delay_s: float | None = None,
        at: float | datetime | None = None,
        search_limit: int = SEARCH_LIMIT,
    ) -> ChangeReport:
        """Change the due time of a delayed or retrying job. See ``JobAdmin.reschedule``."""
        return await self._first(lambda one: one.reschedule(job_id, delay_s=delay_s, at=at, search_limit=search_limit))

    async def edit_and_retry(
        self, dead_id: str, data: Mapping[str, Any] | None = None, *, group: str | None = None
    ) -> ChangeReport:
        """Retry a dead letter, with other data if given. See ``JobAdmin.edit_and_retry``."""
        return await self._first(lambda one: one.edit_and_retry(dead_id, data, group=group))

    async def dead_letter(self, dead_id: str) -> JobReport | None:
        """Return a dead letter with its data; None if it does not exist. See ``JobAdmin.dead_letter``."""
        for one in await self._partitions():
            found = await one.dead_letter(dead_id)
            if found is not None:
                return found
        return None

    async def bulk(  # noqa: PLR0913 - the arguments of ``JobAdmin.bulk``
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
        """Change all matching jobs of a phase, one partition after the other. See ``JobAdmin.bulk``.

        Each partition stores its progress under the run's name. ``limit`` applies to all partitions together.
        """
        run_name = name or new_id()
        total: BulkReport | None = None
        partitions = await self._partitions()
        for at, one in enumerate(partitions):
            before, is_last = total, at == len(partitions) - 1
            # A resumed run skips the partitions that it has completed.
            report = None if is_last or dry_run else await one.bulk_progress(run_name)
            if report is None or not report.done:
                report = await one.bulk(
                    action,
                    phase,
                    where,
                    name=run_name,
                    dry_run=dry_run,
                    delay_s=delay_s,
                    rate_per_s=rate_per_s,
                    limit=limit,
                    on_progress=None if on_progress is None else _adding(on_progress, before, is_last=is_last),
                )
            total = _sum(before, report, done=report.done and is_last)
            if limit is not None:
                limit -= report.matched
                if limit <= 0:
                    return replace(total, done=True)
        assert total is not None  # noqa: S101 - a stream has at least one partition
        return total

    async def bulk_progress(self, name: str) -> BulkReport | None:
        """Return the progress of a bulk change; None if there is none of that name. See ``JobAdmin.bulk_progress``."""
        reports = [await one.bulk_progress(name) for one in await self._partitions()]
        total: BulkReport | None = None
        for report in reports:
            if report is not None:
                total = _sum(total, report, done=all(one is not None and one.done for one in reports))
        return total

    async def reset(self, *, confirm: str | None = None, dry_run: bool = False) -> ResetReport:
        """Delete waiting, delayed, parked and dead jobs of every partition. See ``JobAdmin.reset``."""
        if not dry_run:
            require_confirmation(self._stream, confirm)
        names = await partition_names(self._client, self._stream)
        reports = [await self._admin(name).reset(confirm=name, dry_run=dry_run) for name in names]
        return ResetReport(
            stream=self._stream,
            entries=sum(one.entries for one in reports),
            behind=sum(one.behind for one in reports),
            delayed=sum(one.delayed for one in reports),
            parked=sum(one.parked for one in reports),
            dead=sum(one.dead for one in reports),
            dry_run=dry_run,
        )

    async def _first(self, change: Callable[[JobAdmin], Awaitable[ChangeReport]]) -> ChangeReport:
        """Return the report of the first partition that has the job, else the report of the last partition."""
        note = ""
        for one in await self._partitions():
            report = await change(one)
            if report.change is not JobChange.GONE:
                return report
            note = note or report.note
        return replace(report, note=note)

    async def _partitions(self) -> Sequence[JobAdmin]:
        return [self._admin(name) for name in await partition_names(self._client, self._stream)]

    def _admin(self, name: str) -> JobAdmin:
        return JobAdmin(self._client, name, group=self._group)


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
