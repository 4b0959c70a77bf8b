"""Change all jobs that match a filter, in steps, at a limited rate, with progress stored on the server.

A run has a name, and a key in the slot of the stream with its parameters, position and counters. Each step changes some
jobs and then stores the progress. If the process dies in between, the resumed run repeats the step and finds its jobs
changed already: each change is one script that applies once.

Jobs emitted after the start of the run are not changed.

See docs/decisions/0046.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from conquiet.core.redaction import printable
from conquiet.core.throttle import Throttle
from conquiet.core.validation import require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError
from conquiet.management.jobs.control import ChangeReport, JobChange, JobControl
from conquiet.management.jobs.decoding import JobDecoder
from conquiet.management.jobs.models import BulkAction, JobFilter, JobPhase, JobReport
from conquiet.management.jobs.reader import JobReader
from conquiet.management.models import Report

_STEP = 100
_KEPT_MS = 7 * 86_400_000
_KEYS_STEP = 10
_WAITS = frozenset({JobPhase.DELAYED, JobPhase.RETRYING})
_LISTS = frozenset({JobPhase.PARKED, JobPhase.BEHIND})


class _BulkStep(NamedTuple):
    """Jobs that match, the number of jobs that were read, the next cursor (empty at the end), and their list if any.

    ``place`` is None if the name of the list is not text: its jobs are read and cannot be changed.
    """

    jobs: Sequence[JobReport]
    scanned: int
    cursor: str
    place: str | None = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """The arguments of ``JobAdmin.bulk`` that make one run."""

    action: BulkAction
    phase: JobPhase
    where: JobFilter
    name: str
    dry_run: bool
    delay_s: float | None
    limit: int | None

    def __post_init__(self) -> None:
        action, phases = self.action, _PHASES[self.action]
        if self.phase not in phases:
            raise ConfigurationError(f"{action} is for jobs that are {', '.join(sorted(phases))}; got {self.phase}")
        if (self.delay_s is not None) != (action is BulkAction.RESCHEDULE):
            raise ConfigurationError("delay_s is for reschedule, and needed there")
        if self.delay_s is not None:
            require_seconds("delay_s", self.delay_s, zero_allowed=True)
        if self.limit is not None:
            require_positive("limit", self.limit)
        require_text("name", self.name)


class _Saved(msgspec.Struct, kw_only=True):
    """A run as it is stored. The same request resumes it."""

    request: BulkRequest
    began_ms: int
    report: BulkReport


class BulkRunner:
    """Runs bulk changes of one stream.

    Args:
        reader: Reads the stream.
        control: Changes single jobs.
    """

    def __init__(self, reader: JobReader, control: JobControl) -> None:
        self._reader = reader
        self._control = control

    async def run(
        self, request: BulkRequest, rate_per_s: float | None, on_progress: Callable[[BulkReport], None] | None
    ) -> BulkReport:
        """Change all matching jobs of a phase; see ``JobAdmin.bulk``."""
        limit, dry_run = request.limit, request.dry_run
        throttle = Throttle(rate_per_s)
        saved = await self._begin(request)
        report = saved.report
        due = "" if request.delay_s is None else str(await self._control.due_ms(request.delay_s))
        removed = _Removed()
        async for step in self._steps(request, report.cursor, removed):
            meant = [job for job in step.jobs if not job.emitted_ms or job.emitted_ms <= saved.began_ms]
            if limit is not None:
                meant = meant[: max(0, limit - report.matched)]
            changes: list[ChangeReport] = []
            for job in meant if not dry_run else ():
                await asyncio.sleep(throttle.reserve())
                changes.append(await self._change(request.action, job, due, step.place))
            removed.count = sum(one.change in {JobChange.CANCELLED, JobChange.GONE} for one in changes)
            report = _counted(report, len(meant), step.scanned, changes, step.cursor)
            if limit is not None and report.matched >= limit:
                report = replace(report, done=True)
            if not dry_run:
                saved.report = report
                await self._save(saved)
            if on_progress is not None:
                on_progress(report)
            if report.done:
                break
        return report

    async def progress(self, name: str) -> BulkReport | None:
        """Return the progress of a run; None if there is none of that name."""
        saved = await self._load(require_text("name", name))
        return None if saved is None else saved.report

    async def _change(self, action: BulkAction, job: JobReport, due: str, place: str | None) -> ChangeReport:
        match action:
            case BulkAction.CANCEL:
                if place is None:
                    note = "the name of its list is not UTF-8"
                    return ChangeReport(job.id, JobChange.REFUSED, job.phase, note)
                return await self._control.cancel_found(job, place)
            case BulkAction.RUN_NOW | BulkAction.RESCHEDULE:
                return await self._control.move_found(job, due)
            case BulkAction.RETRY:
                return await self._control.edit(job.place)

    # ------------------------------------------------------------ steps

    def _steps(self, request: BulkRequest, cursor: str, removed: "_Removed") -> AsyncIterator[_BulkStep]:
        """Yield each step."""
        phase, where = request.phase, request.where
        if phase in _WAITS:
            return self._scan_delayed(phase, where, cursor)
        if phase in _LISTS:
            return self._walk_lists(phase, where, cursor, removed)
        return self._pages(phase, where, cursor)

    async def _pages(self, phase: JobPhase, where: JobFilter, cursor: str) -> AsyncIterator[_BulkStep]:
        position: str | None = cursor or None
        while True:
            page = await self._reader.list(phase, where, cursor=position, limit=_STEP)
            position = page.cursor
            yield _BulkStep(page.jobs, page.scanned, position or "")
            if position is None:
                return

    async def _walk_lists(
        self, phase: JobPhase, where: JobFilter, cursor: str, removed: "_Removed"
    ) -> AsyncIterator[_BulkStep]:
        """Read lists of messages, each from its end.

        Workers remove messages at the beginning of a list, and new ones are added at its end. A position counted from
        the beginning would therefore skip messages; counted from the end it may only return one twice.
        """
        decoder, at = await self._decoder(), int(cursor or 0)
        while True:
            names, following = await self._lists(phase, at)
            for list_name, name, place in names:
                left_out = 0
                while members := await self._reader.send("LRANGE", list_name, -left_out - _STEP, -left_out - 1):
                    now_ms = await self._reader.now_ms()
                    if phase is JobPhase.BEHIND:
                        found = [decoder.behind(raw, now_ms, key=name) for raw in members]
                    else:
                        found = [decoder.parked(raw, now_ms, event=name) for raw in members]
                    accepted = [job for job in found if job is not None and where.accepts(job)]
                    yield _BulkStep(accepted, len(found), str(at), place)
                    left_out += len(members) - removed.count
            yield _BulkStep((), 0, str(following) if following else "")
            if not following:
                return
            at = following

    async def _lists(self, phase: JobPhase, at: int) -> "tuple[list[_List], int]":
        """Return some lists and the next cursor; 0 at the end."""
        keys = self._reader.keys
        if phase is JobPhase.PARKED:
            return _named(keys.parked_event(""), await self._reader.parked_events()), 0
        following, pairs = await self._reader.send("ZSCAN", keys.waiting_keys, at, "COUNT", _KEYS_STEP)
        return _named(keys.waiting(""), pairs[::2]), int(following)

    async def _decoder(self) -> JobDecoder:
        group = await self._reader.group()
        return self._reader.decoder("" if group is None else group.name)

    async def _scan_delayed(self, phase: JobPhase, where: JobFilter, cursor: str) -> AsyncIterator[_BulkStep]:
        """Scan the delayed set. SCAN returns every remaining member while others are removed; pages would skip some."""
        decoder, at = await self._decoder(), int(cursor or 0)
        while True:
            following_at, pairs = await self._reader.send("ZSCAN", self._reader.keys.delayed, at, "COUNT", _STEP)
            now_ms = await self._reader.now_ms()
            found = [decoder.delayed(raw, due, now_ms) for raw, due in zip(pairs[::2], pairs[1::2], strict=True)]
            at = int(following_at)
            accepted = [job for job in found if job is not None and job.phase is phase and where.accepts(job)]
            yield _BulkStep(accepted, len(found), str(at) if at else "")
            if not at:
                return

    # ------------------------------------------------------------ progress

    async def _begin(self, request: BulkRequest) -> _Saved:
        """Return the run to resume, or a new one, which is stored unless nothing will be changed."""
        known = None if request.dry_run else await self._load(request.name)
        if known is not None:
            if known.request == request:
                return known
            raise ConfigurationError(
                f"a run named {printable(request.name)!r} of stream {printable(self._reader.keys.stream)!r} has "
                "another action or filter: give another name, or the same options to resume it"
            )
        report = BulkReport(name=request.name, action=request.action, phase=request.phase, dry_run=request.dry_run)
        new = _Saved(request=request, began_ms=await self._reader.now_ms(), report=report)
        if not request.dry_run:
            await self._save(new)
        return new

    async def _save(self, saved: _Saved) -> None:
        encoded = msgspec.json.encode(saved)
        await self._reader.send("SET", self._key(saved.report.name), encoded, "PX", _KEPT_MS)

    async def _load(self, name: str) -> _Saved | None:
        raw = await self._reader.send("GET", self._key(name))
        return msgspec.json.decode(raw, type=_Saved) if raw else None

    def _key(self, name: str) -> str:
        return f"{self._reader.keys.base}:bulk:{name}"


class _List(NamedTuple):
    """A list of messages: its key, the event or the key of the messages, and the key as text if it is text."""

    key: bytes
    name: str
    place: str | None


def _named(prefix: str, names: Sequence[bytes]) -> list[_List]:
    """Return the lists with these names. Another program may have stored any bytes."""
    found = []
    for name in names:
        shown = name.decode(errors="backslashreplace")
        is_text = shown.encode() == name
        found.append(_List(prefix.encode() + name, shown, prefix + shown if is_text else None))
    return found


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
