"""Change all jobs that match a filter, in steps, at a limited rate, with progress stored on the server.

A run has a name, and a key in the slot of the stream with its parameters, position and counters. Each step changes some
jobs and then stores the progress. If the process dies in between, the resumed run repeats the step and finds its jobs
changed already: each change is one script that applies once.

Jobs emitted after the start of the run are not changed.

See docs/decisions/0047.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec

from conquiet.core.redaction import printable
from conquiet.core.throttle import Throttle
from conquiet.core.validation import require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError
from conquiet.management.jobs.control import ChangeReport, JobChange, JobControl
from conquiet.management.jobs.decoding import JobDecoder
from conquiet.management.jobs.models import JobFilter, JobPhase, JobReport
from conquiet.management.jobs.reader import JobReader
from conquiet.management.models import Report

_STEP = 100
_KEPT_MS = 7 * 86_400_000
_KEYS_STEP = 10
_WAITS = frozenset({JobPhase.DELAYED, JobPhase.RETRYING})
_LISTS = frozenset({JobPhase.PARKED, JobPhase.BEHIND})


_Step = tuple[Sequence[JobReport], int, str]


class BulkAction(StrEnum):
    """Change of each job."""

    CANCEL = "cancel"
    RUN_NOW = "run-now"
    RESCHEDULE = "reschedule"
    RETRY = "retry"


_PHASES = {
    BulkAction.CANCEL: frozenset({*_WAITS, *_LISTS, JobPhase.WAITING, JobPhase.RUNNING}),
    BulkAction.RUN_NOW: _WAITS,
    BulkAction.RESCHEDULE: _WAITS,
    BulkAction.RETRY: frozenset({JobPhase.DEAD}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkReport(Report):
    """Progress of a run.

    Attributes:
        name: Its name, to resume the run.
        action: Change of each job.
        phase: Phase of the jobs.
        dry_run: True if nothing is changed.
        done: True once every job was read.
        scanned: Jobs that were read.
        matched: Jobs that match the filter.
        changed: Jobs that were cancelled, moved or retried.
        requested: Running jobs with a requested cancellation.
        gone: Jobs that had moved on since they were read.
        refused: Jobs that could not be changed, or had their effect.
        cursor: Position of the run.
    """

    name: str
    action: BulkAction
    phase: JobPhase
    dry_run: bool = False
    done: bool = False
    scanned: int = 0
    matched: int = 0
    changed: int = 0
    requested: int = 0
    gone: int = 0
    refused: int = 0
    cursor: str = ""


class _Saved(msgspec.Struct, kw_only=True):
    """A run as it is stored."""

    action: str
    phase: str
    where: dict[str, Any]
    delay_s: float | None
    limit: int | None
    began_ms: int
    report: dict[str, Any]


class BulkRunner:
    """Runs bulk changes of one stream.

    Args:
        reader: Reads the stream.
        control: Changes single jobs.
    """

    def __init__(self, reader: JobReader, control: JobControl) -> None:
        self._reader = reader
        self._control = control

    async def run(  # noqa: PLR0913 - the arguments of ``JobAdmin.bulk``
        self,
        action: BulkAction,
        phase: JobPhase,
        where: JobFilter,
        *,
        name: str,
        dry_run: bool = False,
        delay_s: float | None = None,
        rate_per_s: float | None = None,
        limit: int | None = None,
        on_progress: Callable[[BulkReport], None] | None = None,
    ) -> BulkReport:
        """Change all matching jobs of a phase; see ``JobAdmin.bulk``."""
        _check(action, phase, delay_s, limit)
        throttle = Throttle(rate_per_s)
        saved = await self._begin(action, phase, where, name=name, delay_s=delay_s, limit=limit, dry_run=dry_run)
        report = BulkReport(**saved.report)
        due = "" if action is not BulkAction.RESCHEDULE else str(await self._control.due_ms(delay_s))
        removed = _Removed()
        async for jobs, scanned, cursor in self._steps(phase, where, report.cursor, removed):
            meant = [job for job in jobs if not job.emitted_ms or job.emitted_ms <= saved.began_ms]
            if limit is not None:
                meant = meant[: max(0, limit - report.matched)]
            changes: list[ChangeReport] = []
            for job in meant if not dry_run else ():
                await asyncio.sleep(throttle.reserve())
                changes.append(await self._change(action, job, due))
            removed.count = sum(one.change in {JobChange.CANCELLED, JobChange.GONE} for one in changes)
            report = _counted(report, len(meant), scanned, changes, cursor)
            if limit is not None and report.matched >= limit:
                report = replace(report, done=True)
            if not dry_run:
                await self._save(saved, report)
            if on_progress is not None:
                on_progress(report)
            if report.done:
                break
        return report

    async def progress(self, name: str) -> BulkReport | None:
        """Return the progress of a run; None if there is none of that name."""
        saved = await self._load(name)
        return None if saved is None else _report_of(saved)

    async def _change(self, action: BulkAction, job: JobReport, due: str) -> ChangeReport:
        match action:
            case BulkAction.CANCEL:
                return await self._control.cancel_found(job)
            case BulkAction.RUN_NOW | BulkAction.RESCHEDULE:
                return await self._control.move_found(job, due)
            case BulkAction.RETRY:
                return await self._control.edit(job.place)

    # ------------------------------------------------------------ steps

    async def _steps(self, phase: JobPhase, where: JobFilter, cursor: str, removed: "_Removed") -> AsyncIterator[_Step]:
        """Yield for each step the matching jobs, the number read, and the next cursor; empty at the end."""
        if phase in _WAITS:
            steps = self._scan_delayed(phase, where, cursor)
        elif phase in _LISTS:
            steps = self._walk_lists(phase, where, cursor, removed)
        else:
            steps = self._pages(phase, where, cursor)
        async for step in steps:
            yield step

    async def _pages(self, phase: JobPhase, where: JobFilter, cursor: str) -> AsyncIterator[_Step]:
        position: str | None = cursor or None
        while True:
            page = await self._reader.list(phase, where, cursor=position, limit=_STEP)
            position = page.cursor
            yield page.jobs, page.scanned, position or ""
            if position is None:
                return

    async def _walk_lists(
        self, phase: JobPhase, where: JobFilter, cursor: str, removed: "_Removed"
    ) -> AsyncIterator[_Step]:
        """Read lists of messages, each from its end.

        Workers remove messages at the beginning of a list, and new ones are added at its end. A position counted from
        the beginning would therefore skip messages; counted from the end it may only return one twice.
        """
        decoder, at = await self._decoder(), int(cursor or 0)
        while True:
            names, following = await self._lists(phase, at)
            for name in names:
                left_out = 0
                while members := await self._reader.send("LRANGE", name, -left_out - _STEP, -left_out - 1):
                    now_ms = await self._reader.now_ms()
                    read = decoder.behind if phase is JobPhase.BEHIND else decoder.parked
                    found = [read(raw, now_ms) for raw in members]
                    yield [job for job in found if job is not None and where.accepts(job)], len(found), str(at)
                    left_out += len(members) - removed.count
            yield (), 0, str(following) if following else ""
            if not following:
                return
            at = following

    async def _lists(self, phase: JobPhase, at: int) -> tuple[list[str], int]:
        """Return the names of some lists and the next cursor; 0 at the end."""
        keys = self._reader.keys
        if phase is JobPhase.PARKED:
            return [keys.parked_event(event.decode()) for event in await self._reader.parked_events()], 0
        following, pairs = await self._reader.send("ZSCAN", keys.waiting_keys, at, "COUNT", _KEYS_STEP)
        return [keys.waiting(key.decode()) for key in pairs[::2]], int(following)

    async def _decoder(self) -> JobDecoder:
        group = await self._reader.group()
        return JobDecoder(self._reader.keys.stream, "" if group is None else group.name, with_data=False)

    async def _scan_delayed(self, phase: JobPhase, where: JobFilter, cursor: str) -> AsyncIterator[_Step]:
        """Scan the delayed set. SCAN returns every remaining member while others are removed; pages would skip some."""
        decoder, at = await self._decoder(), int(cursor or 0)
        while True:
            following_at, pairs = await self._reader.send("ZSCAN", self._reader.keys.delayed, at, "COUNT", _STEP)
            now_ms = await self._reader.now_ms()
            found = [decoder.delayed(raw, due, now_ms) for raw, due in zip(pairs[::2], pairs[1::2], strict=True)]
            at = int(following_at)
            yield (
                [job for job in found if job is not None and job.phase is phase and where.accepts(job)],
                len(found),
                str(at) if at else "",
            )
            if not at:
                return

    # ------------------------------------------------------------ progress

    async def _begin(
        self,
        action: BulkAction,
        phase: JobPhase,
        where: JobFilter,
        *,
        name: str,
        delay_s: float | None,
        limit: int | None,
        dry_run: bool,
    ) -> _Saved:
        require_text("name", name)
        new = _Saved(
            action=action.value,
            phase=phase.value,
            where=msgspec.to_builtins(where),
            delay_s=delay_s,
            limit=limit,
            began_ms=await self._reader.now_ms(),
            report=BulkReport(name=name, action=action, phase=phase, dry_run=dry_run).as_dict(),
        )
        if dry_run:
            return _typed(new)
        known = await self._load(name)
        if known is None:
            await self._reader.send("SET", self._key(name), msgspec.json.encode(new), "PX", _KEPT_MS)
            return _typed(new)
        if (known.action, known.phase, known.where, known.delay_s, known.limit) != (
            new.action,
            new.phase,
            new.where,
            new.delay_s,
            new.limit,
        ):
            raise ConfigurationError(
                f"a run named {printable(name)!r} of stream {printable(self._reader.keys.stream)!r} has another action "
                "or filter: give another name, or the same options to resume it"
            )
        return _typed(known)

    async def _save(self, saved: _Saved, report: BulkReport) -> None:
        saved.report = report.as_dict()
        encoded = msgspec.json.encode(_plain(saved))
        await self._reader.send("SET", self._key(report.name), encoded, "PX", _KEPT_MS)

    async def _load(self, name: str) -> _Saved | None:
        raw = await self._reader.send("GET", self._key(require_text("name", name)))
        return msgspec.json.decode(raw, type=_Saved) if raw else None

    def _key(self, name: str) -> str:
        return f"{self._reader.keys.base}:bulk:{name}"


@dataclass(slots=True)
class _Removed:
    """Number of messages of the last step that were removed from their list."""

    count: int = 0


def _counted(
    report: BulkReport, matched: int, scanned: int, changes: Sequence[ChangeReport], cursor: str
) -> BulkReport:
    kinds = [one.change for one in changes]
    changed = sum(kind in {JobChange.CANCELLED, JobChange.MOVED} for kind in kinds)
    requested, gone = kinds.count(JobChange.REQUESTED), kinds.count(JobChange.GONE)
    return replace(
        report,
        done=not cursor,
        scanned=report.scanned + scanned,
        matched=report.matched + matched,
        changed=report.changed + changed,
        requested=report.requested + requested,
        gone=report.gone + gone,
        refused=report.refused + len(kinds) - changed - requested - gone,
        cursor=cursor,
    )


def _check(action: BulkAction, phase: JobPhase, delay_s: float | None, limit: int | None) -> None:
    if phase not in _PHASES[action]:
        raise ConfigurationError(f"{action} is for jobs that are {', '.join(sorted(_PHASES[action]))}; got {phase}")
    if (delay_s is not None) != (action is BulkAction.RESCHEDULE):
        raise ConfigurationError("delay_s is for reschedule, and needed there")
    if delay_s is not None:
        require_seconds("delay_s", delay_s, zero_allowed=True)
    if limit is not None:
        require_positive("limit", limit)


def _report_of(saved: _Saved) -> BulkReport:
    return BulkReport(**_typed(saved).report)


def _typed(saved: _Saved) -> _Saved:
    """Return a stored run with the enums of its report restored."""
    facts = dict(saved.report)
    facts["action"], facts["phase"] = BulkAction(facts["action"]), JobPhase(facts["phase"])
    return msgspec.structs.replace(saved, report=facts)


def _plain(saved: _Saved) -> _Saved:
    return msgspec.structs.replace(saved, report=msgspec.to_builtins(saved.report))
