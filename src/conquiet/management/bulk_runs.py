"""Bulk actions on dead letters and jobs that continue after their page is closed.

    counting ──▶ counted ──confirm──▶ running ──▶ done
        └────────────┴── cancel ──────────┴──▶ cancelled         (failed: a server refused)

A run is a key in Redis. The process that executes it holds a lease; when that process ends, another one takes the run
over and continues. Each step is one script that removes a dead letter and returns its message to the stream: a killed
process leaves no step half done, and a replayed message is not found a second time. A run covers dead letters up to its
start, so it does not replay messages that are dead-lettered because of it.

See docs/decisions/0046.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from conquiet.core.replay_report import ReplayReport
from conquiet.core.throttle import Throttle
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError, ConquietError
from conquiet.management.bulk_run_models import ACTIVE, BulkRun, RunAction, RunState
from conquiet.management.jobs.admin import JobAdmin
from conquiet.management.jobs.bulk import BulkReport
from conquiet.management.jobs.models import JobFilter, JobPhase
from conquiet.processor.dead_letters import DeadFilter
from conquiet.processor.partitioned_dead_letters import PartitionedDeadLetters
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.client_commands import command, commands
from conquiet.redis_transport.commands import Word
from conquiet.redis_transport.liveness import RELEASE_NAME, RESERVE_NAME
from conquiet.redis_transport.replies import server_ms

__all__ = ["BulkRun", "BulkRuns", "RunAction", "RunState"]

INDEX: Final = "conquiet:runs"
KEPT: Final = 200
_KEPT_S: Final = 14 * 86_400
_LEASE_MS: Final = 10_000
_SAVE_S: Final = 0.5
_PAGE: Final = 500
_ACTION: Final = "a bulk run"


class _StoppedError(Exception):
    """The run was cancelled, or another process has taken its lease."""


class BulkRuns:
    """The runs of one Redis.

    Args:
        client: A client without retries. The caller closes it.
        owner: Name of this process in leases.

    Attributes:
        client: The client.
    """

    def __init__(self, client: AsyncClient, owner: str) -> None:
        self.client = client
        self._owner = owner

    async def create(
        self,
        *,
        action: RunAction,
        stream: str,
        where: DeadFilter | JobFilter,
        user: str,
        group: str = "",
        phase: JobPhase | None = None,
        rate_per_s: float = 0.0,
        audit_id: str = "",
    ) -> BulkRun:
        """Create a run that counts the matching dead letters, or jobs. It changes nothing before it is confirmed.

        Args:
            action: Change of each message.
            stream: The stream.
            where: Filter of dead letters; or of jobs, together with ``phase`` and ``group``.
            user: Name of the user.
            group: The consumer group of the jobs.
            phase: Phase of the jobs.
            rate_per_s: Most messages per second; 0 for no limit.
            audit_id: Id of the action in the audit stream.
        """
        now_ms = await self._now_ms()
        run = BulkRun(
            id=f"{now_ms:x}-{secrets.token_hex(4)}",
            action=action,
            stream=stream,
            where=DeadFilter(),
            user=user,
            state=RunState.COUNTING,
            created_ms=now_ms,
            rate_per_s=float(require_seconds("rate_per_s", rate_per_s, zero_allowed=True)),
            audit_id=audit_id,
        )
        if isinstance(where, JobFilter):
            run = replace(run, jobs=where, group=group, phase="" if phase is None else phase.value)
        else:
            until_ms = min(now_ms, where.before_ms or now_ms)
            total = await PartitionedDeadLetters(self.client, stream).count()
            run = replace(run, where=replace(where, before_ms=until_ms), total=total)
        await self._send("SET", _key(run.id), msgspec.json.encode(run), "EX", _KEPT_S)
        await self._send("ZADD", INDEX, run.created_ms, run.id)
        await self._send("ZREMRANGEBYRANK", INDEX, 0, -KEPT - 1)
        return run

    async def get(self, run_id: str) -> BulkRun | None:
        """Return one run; None if it is not known (any more)."""
        raw = await self._send("GET", _key(run_id))
        return None if raw is None else _decode(raw)

    async def newest(self, *, limit: int = 50) -> list[BulkRun]:
        """Return the newest runs."""
        ids = await self._send("ZREVRANGE", INDEX, 0, limit - 1)
        if not ids:
            return []
        # No MGET: in a cluster the runs are in different slots.
        found = await commands(self.client, [("GET", _key(one.decode())) for one in ids], action=_ACTION)
        return [_decode(raw) for raw in found if raw is not None]

    async def confirm(self, run_id: str) -> BulkRun:
        """Start a counted run."""
        return await self._change(run_id, {RunState.COUNTED}, RunState.RUNNING)

    async def cancel(self, run_id: str) -> BulkRun:
        """Stop a run after its current step. Its finished steps are not undone."""
        return await self._change(run_id, {*ACTIVE, RunState.COUNTED}, RunState.CANCELLED)

    async def act_on(self, action: RunAction, stream: str, ids: Sequence[str]) -> int:
        """Replay or discard these dead letters now; return how many existed."""
        dead_letters = PartitionedDeadLetters(self.client, stream)
        if action is RunAction.DISCARD:
            return await dead_letters.discard_ids(ids)
        return sum([(await dead_letters.replay(DeadFilter(id=one))).replayed for one in ids])

    async def find_abandoned(self) -> list[BulkRun]:
        """Return active runs that no process works on."""
        active = [run for run in await self.newest(limit=KEPT) if run.is_active]
        return [run for run in active if not await self._send("EXISTS", _lease(run.id))]

    async def execute(self, run_id: str) -> BulkRun | None:
        """Work on a run until it is counted, done or cancelled, if no other process does.

        Return it as this process has ended it; None if another process works on it, or has cancelled it.
        """
        if not await self._renew_lease(run_id):
            return None
        run = await self.get(run_id)
        try:
            return await _StoredRunExecutor(self, run).execute() if run is not None and run.is_active else None
        finally:
            with contextlib.suppress(Exception):  # the lease expires
                await self._send("EVAL", RELEASE_NAME, 1, _lease(run_id), self._owner)

    async def progress(self, run: BulkRun) -> None:
        """Write the progress of a run and renew its lease; raise if this process has lost it."""
        if not await self._renew_lease(run.id):
            raise _StoppedError
        await self._save_if_unchanged(run, run.state)

    async def finish(self, run: BulkRun, state: RunState, error: str = "") -> BulkRun:
        """Write the final state of a run; raise if its state has changed: a cancellation is not overwritten."""
        ended = replace(run, state=state, error=error)
        await self._save_if_unchanged(ended, run.state)
        return ended

    async def _change(self, run_id: str, before: set[RunState], after: RunState) -> BulkRun:
        while True:
            run = await self.get(run_id)
            if run is None:
                raise ConfigurationError("there is no such run any more")
            if run.state not in before:
                raise ConfigurationError(f"the run is {run.state.value}; it cannot become {after.value}")
            changed = replace(run, state=after)
            # A cancel, a confirm and a step of the executing process may overlap.
            with contextlib.suppress(_StoppedError):
                await self._save_if_unchanged(changed, run.state)
                return changed

    async def _save_if_unchanged(self, run: BulkRun, state: RunState) -> None:
        words = msgspec.json.encode(run), _KEPT_S, f'"state":"{state.value}"'
        if not await self._send("EVAL", _SAVE_IF_UNCHANGED, 1, _key(run.id), *words):
            raise _StoppedError

    async def _renew_lease(self, run_id: str) -> bool:
        """Take or renew the lease of a run. False if another process holds it."""
        return bool(await self._send("EVAL", RESERVE_NAME, 1, _lease(run_id), self._owner, _LEASE_MS))

    async def _now_ms(self) -> int:
        return server_ms(await self._send("TIME"))

    async def _send(self, *words: Word) -> Any:
        return await command(self.client, *words, action=_ACTION)


_SAVE_IF_UNCHANGED: Final = """
local now = redis.call('GET', KEYS[1])
if not now or not string.find(now, ARGV[3], 1, true) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""
"""Write a run unless its state was changed. KEYS: run; ARGV: run as JSON, seconds, the state it was in."""


class _StoredRunExecutor:
    """Execute one run and save its numbers twice a second, in a task."""

    def __init__(self, runs: BulkRuns, run: BulkRun) -> None:
        self._runs = runs
        self._run = run
        self._dead_letters = PartitionedDeadLetters(runs.client, run.stream)
        self._stopped = False

    async def execute(self) -> BulkRun | None:
        """Execute the run and return its final state; None if it was cancelled or taken over."""
        counting = self._run.state is RunState.COUNTING
        try:
            saver = asyncio.create_task(self._save_while_running())
            try:
                await (self._count() if counting else self._work())
            finally:
                saver.cancel()
                await asyncio.gather(saver, return_exceptions=True)
            if counting:
                return await self._runs.finish(self._run, RunState.COUNTED)
            await self._runs.progress(self._run)
            return await self._runs.finish(self._run, RunState.DONE)
        except _StoppedError:
            return None
        except ConquietError as error:
            # The class without the text, which may quote an address.
            with contextlib.suppress(ConquietError, _StoppedError):
                return await self._runs.finish(self._run, RunState.FAILED, type(error).__name__)
            return None

    def _note(self, **numbers: Any) -> None:
        """Remember the numbers of the run after a step; raise if it has been stopped."""
        self._run = replace(self._run, **numbers)
        if self._stopped:
            raise _StoppedError

    async def _count(self) -> None:
        if self._run.jobs is not None:
            await self._with_jobs(
                lambda report: self._note(scanned=report.scanned, total=report.scanned, matched=report.matched),
                dry_run=True,
            )
            return
        total, matched, scanned = self._run.total, 0, 0
        cursor: str | None = None
        while True:
            page = await self._dead_letters.list(cursor=cursor, limit=_PAGE, where=self._run.where)
            matched += len(page.items)
            cursor = page.cursor
            scanned = min(total, scanned + _PAGE) if cursor else total
            self._note(scanned=scanned, matched=matched)
            if cursor is None:
                return

    async def _work(self) -> None:
        if self._run.jobs is not None:
            await self._with_jobs(
                lambda report: self._note(done=report.changed + report.requested, skipped=report.gone + report.refused),
                dry_run=False,
            )
        elif self._run.action is RunAction.REPLAY:
            await self._replay()
        else:
            await self._discard()

    async def _with_jobs(self, note: Callable[[BulkReport], None], *, dry_run: bool) -> None:
        """Count or change jobs. The run's id names the bulk change, so that another process can continue it."""
        run = self._run
        report = await JobAdmin(self._runs.client, run.stream, group=run.group or None).bulk(
            run.action.value,
            run.phase,
            run.jobs or JobFilter(),
            name=run.id,
            dry_run=dry_run,
            rate_per_s=run.rate_per_s or None,
            on_progress=note,
        )
        note(report)

    async def _replay(self) -> None:
        before = self._run

        def note(report: ReplayReport) -> None:
            skipped = before.skipped + report.gone + report.unreplayable
            self._note(done=before.done + report.replayed, skipped=skipped)

        note(await self._dead_letters.replay(before.where, rate_per_s=before.rate_per_s or None, on_progress=note))

    async def _discard(self) -> None:
        rate = self._run.rate_per_s
        throttle = Throttle(rate or None)
        step = _PAGE if not rate else max(1, min(_PAGE, int(rate / 4)))
        cursor: str | None = None
        while True:
            page = await self._dead_letters.list(cursor=cursor, limit=step, where=self._run.where)
            await asyncio.sleep(throttle.reserve(len(page.items)))
            deleted = await self._dead_letters.discard_ids([one.id for one in page.items])
            self._note(done=self._run.done + deleted, skipped=self._run.skipped + len(page.items) - deleted)
            cursor = page.cursor
            if cursor is None:
                return

    async def _save_while_running(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            try:
                await self._runs.progress(self._run)
            except (ConquietError, _StoppedError):
                # Cancelled, taken over, or the server is unavailable: stop at the next step; another process continues.
                self._stopped = True
                return


def _key(run_id: str) -> str:
    return f"conquiet:run:{run_id}"


def _lease(run_id: str) -> str:
    return f"conquiet:run:{run_id}:lease"


def _decode(raw: bytes) -> BulkRun:
    return msgspec.json.decode(raw, type=BulkRun)
