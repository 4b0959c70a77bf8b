"""The loop that fires due entries. Any number of hosts run it; none is special.

    glance ──▶ reload what changed ──▶ plan what is due ──▶ carry out ──▶ sleep until the next due time
      ▲                                       ▲                                     │    │
      │                                       └──────────── due ────────────────────┘    │
      └─────────────────────────────── every ``poll_s`` ─────────────────────────────────┘

Every host tries every tick at its due time; a script lets exactly one through. So there is no leader to elect
and nobody to take over from: with a host gone the others fire the same tick at the same moment. The clock is
the server's TIME, read at every glance and again inside the script; a host's own clock only measures the
time since it last saw the server's.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from types import TracebackType
from typing import Self

from conquiet.errors import ConfigurationError, QueueError
from conquiet.kernel.background import until_ready
from conquiet.kernel.clock import SYSTEM_CLOCK, Clock
from conquiet.kernel.lifecycle import Lifecycle
from conquiet.kernel.validation import require_seconds
from conquiet.processor.envelope import Envelope, to_payload
from conquiet.processor.jobs import JobRecorder, JobState, NewState
from conquiet.processor.keys import keys_of
from conquiet.queue.client import AnyRedis
from conquiet.queue.codec import encode_payload
from conquiet.scheduler.catch_up import Plan, plan
from conquiet.scheduler.entries import Origin, ScheduleEntry
from conquiet.scheduler.ledger import Declared, Glance, Order, Record, Verdict, moved
from conquiet.scheduler.metrics import observe_error, observe_fire, observe_missed
from conquiet.scheduler.schedules import Schedules
from conquiet.scheduler.shelves import PATIENCE, Shelf

logger = logging.getLogger(__name__)

_MS = 1_000
_LARGEST_MESSAGE = 1_048_576
_LONGEST_POLL_S = 1.0


class Scheduler(Schedules):
    """Fires entries at their due times, each tick once over all hosts of the group.

    Args:
        redis: A redis-py client, sync or asyncio. It is cloned and never used or closed itself.
        entries: What this program wants fired; more can be declared until the start.
        group: Name shared by the hosts that run the same code; groups do not see each other.
        poll_s: How often changes by others are looked for, at most a second.
        give_up_after_s: How long Redis may stay away before ``start()`` raises.
        job_ttl_s: Note each fired message as a waiting job, as the processor does; the value is the processor's own.
        clock: Measures the time between two glances; its date is never asked for.
        now_ms: Stands in for the server's TIME where a test wants its own.
    """

    def __init__(
        self,
        redis: AnyRedis,
        entries: Iterable[ScheduleEntry] = (),
        *,
        group: str = "conquiet",
        poll_s: float = 0.5,
        give_up_after_s: float = 300.0,
        job_ttl_s: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        if require_seconds("poll_s", poll_s) > _LONGEST_POLL_S:
            raise ConfigurationError("poll_s must be at most 1: hosts promise to notice a change within a second")
        self._poll_s = poll_s
        self._give_up_after_s = require_seconds("give_up_after_s", give_up_after_s)
        self._clock = clock
        self._declared: dict[str, ScheduleEntry] = {}
        self._shelves: dict[str, Shelf] = {}
        self._reported: set[str] = set()
        self._life = Lifecycle("scheduler")
        self._stopped, self._ready = asyncio.Event(), asyncio.Event()
        self._background: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen_ms, self._seen_at, self._glanced_at = 0, 0.0, -math.inf
        if isinstance(entries, ScheduleEntry):
            raise ConfigurationError("entries must be a list of ScheduleEntry, got a single one: put it into [ ]")
        for entry in entries:
            self.declare(entry)
        if job_ttl_s is not None:
            require_seconds("job_ttl_s", job_ttl_s)
        super().__init__(redis, group=group, now_ms=now_ms)
        self._jobs = None if job_ttl_s is None else JobRecorder(self._client, ttl_s=job_ttl_s)

    def declare(self, entry: ScheduleEntry) -> None:
        """Say, before the start, that this program wants the entry. Nothing is sent yet.

        Raises:
            ConfigurationError: Another entry of that name is declared already.
        """
        if not isinstance(entry, ScheduleEntry):
            raise ConfigurationError(f"entries must be a list of ScheduleEntry, got a {type(entry).__name__} in it")
        if self._declared.setdefault(entry.name, entry) != entry:
            raise ConfigurationError(f"two different entries are declared under the name {entry.name!r}")

    async def undeclared(self) -> list[str]:
        """Return the entries in Redis that code once declared and this program does not: they are not fired here.

        ``remove()`` ends them for good.
        """
        _, records = await self._records()
        return sorted(record.entry.name for record in records if not self._is_wanted(record))

    async def start(self, stop_event: asyncio.Event | None = None) -> None:
        """Store what is declared, then fire until ``stop()`` or until ``stop_event`` is set.

        Raises:
            QueueError: Redis did not answer at the start, or stayed away for ``give_up_after_s``.
        """
        self._life.start()
        self._loop = asyncio.get_running_loop()
        watcher = None if stop_event is None else asyncio.create_task(self._stop_on(stop_event))
        try:
            await self._declare_all()
            self._ready.set()
            await self._fire_until_stopped()
        finally:
            self._life.finish()
            if watcher is not None:
                watcher.cancel()

    async def __aenter__(self) -> Self:
        """Start in the background; return once everything declared is stored."""
        self._background = asyncio.create_task(self.start())
        try:
            await until_ready(self._background, self._ready)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop and close. A scheduler that gave up meanwhile raises its error here."""
        self.stop()
        try:
            if self._background is not None:
                await self._background
        finally:
            await self.close()

    def stop(self) -> None:
        """Ask for the end. May be called from a signal handler or another thread, and twice."""
        self._life.stop()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def tick(self) -> int | None:
        """Do one round: fire what is due now and return when the next tick is due (ms), None if never.

        ``start()`` does this for ever. By itself it is for tests and for who brings a loop of their own.
        """
        glance = await self._ledger.glance(self._shelves)
        self._glanced_at = self._clock.monotonic()
        self._see(glance.now)
        await self._refresh(glance)
        return await self._fire(glance.now)

    async def _fire(self, now: int) -> int | None:
        while due := self._due(now):
            for stream, orders in due.items():
                try:
                    now = await self._carry_out(stream, orders)
                except QueueError as error:
                    self._set_back(stream, error, now)
                else:
                    self._shelves[stream].release()
                    self._see(now)
        return min((at for shelf in self._shelves.values() if (at := shelf.next_wake(now)) is not None), default=None)

    def _set_back(self, stream: str, error: QueueError, now: int) -> None:
        """Go on without a stream the server refuses to touch (a key of another type, no rights, no memory).

        The other streams' ticks are not its business, nor is the end of this host. What got no answer is raised.
        """
        if error.in_doubt:
            raise error
        shelf = self._shelves.setdefault(stream, Shelf())
        shelf.hold(now)
        observe_error(self.group)
        if shelf.refusals.bit_count() == 1:  # the 1st, 2nd, 4th, 8th…: it may go on for days
            logger.warning(
                "entries of a stream cannot be fired",
                extra={"stream": stream, "failures": shelf.refusals, "reason": str(error)},
            )

    async def _fire_until_stopped(self) -> None:
        failures, answered = 0, self._clock.monotonic()
        while not self._life.is_stopping:
            try:
                # No second round trip for a glance that is still fresh: whatever has changed since, and the time, is
                # looked at by the firing step itself.
                wake_at = await (self._fire(int(self._server_now())) if self._until_glance() > 0 else self.tick())
            except QueueError as error:
                # Not hidden: counted, logged, and over after give_up_after_s. A script whose reply was lost is not
                # repeated: the next round reads the pointer and sees whether it has happened.
                failures += 1
                observe_error(self.group)
                if self._clock.monotonic() - answered > self._give_up_after_s:
                    raise
                # Without the traceback: it would show the driver's error, and that may quote what was sent.
                logger.warning("scheduler round failed", extra={"failures": failures, "reason": str(error)})
                await self._sleep(PATIENCE.delay_s(failures))
                continue
            failures, answered = 0, self._clock.monotonic()
            await self._sleep(self._pause_before(wake_at))

    def _pause_before(self, wake_at: int | None) -> float:
        until_glance = max(self._until_glance(), 0.0)
        return until_glance if wake_at is None else min(max((wake_at - self._server_now()) / _MS, 0.0), until_glance)

    def _until_glance(self) -> float:
        return self._glanced_at + self._poll_s - self._clock.monotonic()

    def _see(self, now: int) -> None:
        self._seen_ms, self._seen_at = now, self._clock.monotonic()

    def _server_now(self) -> float:
        # The server read its clock before we had the answer, so this estimate is not ahead of it (unless our own
        # seconds are too short, and then the firing step says "early").
        return self._seen_ms + (self._clock.monotonic() - self._seen_at) * _MS

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass

    async def _stop_on(self, event: asyncio.Event) -> None:
        await event.wait()
        self.stop()

    async def _declare_all(self, *, ledger_was_lost: bool = False) -> None:
        records = await self._readable()
        for entry in self._declared.values():
            elsewhere = [one for one in records if one.entry.name == entry.name and one.entry.stream != entry.stream]
            # Frozen, stored anew, removed: a host that dies between two of these leaves an entry that nobody fires or
            # one that only one stream's hosts fire, and whoever starts next goes on from there.
            place = None
            for record in elsewhere:
                place = await self._ledger.freeze(record) or place
            outcome = await self._ledger.declare(
                entry,
                Origin.CODE,
                # A one-off time that is past has most likely been fired: the loss preferred is that of a late one.
                past_is_done=ledger_was_lost,
                place=place,
            )
            if outcome is not Declared.SAME:
                logger.info("schedule entry declared", extra={"entry": entry.name, "outcome": outcome.value})
            for record in elsewhere:
                await self._ledger.remove(record.entry.stream, entry.name)

    async def _readable(self) -> list[Record]:
        """Return all records but those the server refuses to show: one such stream keeps nobody from starting."""
        found: list[Record] = []
        glance = await self._ledger.glance()
        for stream in glance.marks:
            try:
                found += (await self._ledger.load(stream))[1]
            except QueueError as error:
                self._set_back(stream, error, glance.now)
        return found

    async def _refresh(self, glance: Glance) -> None:
        known = [(shelf.mark.epoch, glance.marks.get(stream)) for stream, shelf in self._shelves.items()]
        if any(mark is not None and epoch not in {None, mark.epoch} for epoch, mark in known):
            # FLUSHALL, or a server that came back without its data. What code declares is declared again; what was
            # added at run time is lost with the server's data, and nobody here can know it.
            logger.warning("schedule ledger was lost; declaring the entries of this program again")
            await self._declare_all(ledger_was_lost=True)
            glance = await self._ledger.glance(glance.marks)
        for stream, error in glance.refused.items():
            self._set_back(stream, error, glance.now)
        for stream, mark in glance.marks.items():
            shelf = self._shelves.setdefault(stream, Shelf())
            if shelf.mark != mark:
                try:
                    await self._reload(stream, shelf)
                except QueueError as error:
                    self._set_back(stream, error, glance.now)

    async def _reload(self, stream: str, shelf: Shelf) -> None:
        shelf.mark, records, unreadable = await self._ledger.load(stream)
        live = [record for record in records if self._is_live(record)]
        shelf.records = {record.entry.name: record for record in live}
        shelf.wake_at = {record.entry.name: record.decided for record in live}  # planned at once, and then known
        undeclared = [record.entry.name for record in records if not self._is_wanted(record)]
        self._report("schedule entry is not declared any more and is not fired; remove() it", undeclared)
        self._report("schedule entry cannot be read by this release and is not fired", unreadable)

    def _report(self, message: str, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._reported:
                self._reported.add(name)
                logger.warning(message, extra={"entry": name})

    def _is_wanted(self, record: Record) -> bool:
        return record.origin is Origin.RUNTIME or record.entry.name in self._declared

    def _is_live(self, record: Record) -> bool:
        return super()._is_live(record) and self._is_wanted(record)

    def _due(self, now: int) -> dict[str, list[Order]]:
        """Plan every entry whose time has come; what turns out to have nothing to do only gets its next time."""
        due: dict[str, list[Order]] = {}
        for stream, shelf in self._shelves.items():
            for name in shelf.due(now):
                record = shelf.records[name]
                planned = plan(record.entry, record.decided, now)
                if planned.decided == record.decided:
                    shelf.note(name, planned)
                else:
                    due.setdefault(stream, []).append(_order(record, planned, now))
        return due

    async def _carry_out(self, stream: str, orders: list[Order]) -> int:
        """Fire the orders, take note of what became of them, and return the server's time."""
        shelf = self._shelves[stream]
        results = await self._ledger.carry_out(stream, orders)
        fired: list[NewState] = []
        for order, verdict, pointer, server_now in results:
            entry = order.record.entry
            match verdict:
                case Verdict.DONE:
                    fired += [(entry.fire_id(due), entry.event, 1, JobState.WAITING) for due in order.plan.fire]
                    shelf.records[entry.name] = moved(order.record, pointer)
                    shelf.note(entry.name, order.plan)
                    for held_until in accumulate(map(entry.fire_at, order.plan.fire), max):
                        observe_fire(stream, (server_now - held_until) / _MS)
                    if order.plan.missed:
                        observe_missed(stream, order.plan.missed)
                        logger.warning(
                            "scheduled ticks were missed", extra={"entry": entry.name, "missed": order.plan.missed}
                        )
                case Verdict.STALE:  # another host was first
                    shelf.records[entry.name] = moved(order.record, pointer)
                    shelf.wake_at[entry.name] = pointer
                case Verdict.EARLY:
                    shelf.wake_at[entry.name] = max(map(entry.fire_at, order.plan.fire))
                case Verdict.PAUSED | Verdict.CHANGED:
                    # Somebody changed it since the last glance; the next one sees that and reloads.
                    del shelf.wake_at[entry.name]
        if self._jobs is not None and fired:
            # Afterwards, and only for jobs not yet known: a host may have run one of them by now.
            await self._jobs.note_all(keys_of(stream), fired, only_new=True)
        return results[-1][-1]


def _order(record: Record, planned: Plan, now: int) -> Order:
    entry = record.entry
    messages = [
        encode_payload(
            to_payload(Envelope(entry.event, entry.fire_id(due), dict(entry.data), emitted_ms=now)),
            max_bytes=_LARGEST_MESSAGE,
        )
        for due in planned.fire
    ]
    return Order(record, planned, messages)
