"""Manage a group's entries: add, list, remove, pause, resume, next runs. No loop runs here.

Each call reads Redis again, so it is right whether or not a scheduler runs, here or on another host.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Self

from conquiet.core.redaction import printable
from conquiet.core.validation import require_instance, require_positive, require_text
from conquiet.errors import ConfigurationError
from conquiet.redis_transport.client import AnyRedis, clone_async
from conquiet.scheduler.entries import Once, Origin, ScheduleEntry, from_ms
from conquiet.scheduler.misfires import last_passed
from conquiet.scheduler.schedule_store import Declared, Record, ScheduleSnapshot, ScheduleStore

DEFAULT_GROUP = "processor"
"""As the default group of ``Consumer`` and ``Processor``: one name for the hosts that run the same code."""


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """One entry and its state.

    Attributes:
        entry: The entry.
        origin: Whether code declares it or it was added at run time.
        next_run: When it fires next, jitter included; None if never again or while paused.
        last_fire: Due time of the last tick that was fired.
        fired: Ticks fired so far, by all hosts.
        missed: Ticks dropped by the catch-up policy so far.
        paused_since: Since when it is paused; None if it is not.
    """

    entry: ScheduleEntry
    origin: Origin
    next_run: datetime | None
    last_fire: datetime | None
    fired: int
    missed: int
    paused_since: datetime | None


@dataclass(frozen=True, slots=True)
class UpcomingRun:
    """A future run: the tick's due time, and when it is fired (later than due only by jitter)."""

    name: str
    due: datetime
    at: datetime


class Schedules:
    """The entries of one group, shared by all hosts through Redis.

    Args:
        redis: A redis-py client, sync or asyncio. It is cloned and never used or closed itself.
        group: Name shared by the hosts that run the same code; groups do not see each other.
        now_ms: Replaces the server's TIME in tests.
    """

    def __init__(self, redis: AnyRedis, *, group: str = DEFAULT_GROUP, now_ms: Callable[[], int] | None = None) -> None:
        self.group = require_text("group", group)
        self._client = clone_async(redis)
        self._store = ScheduleStore(self._client, group, now_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections opened here. May be called twice."""
        await self._client.aclose()

    async def add(self, entry: ScheduleEntry, *, replace: bool = False) -> bool:
        """Add an entry at run time; every host fires it within a second. False if it exists already.

        Args:
            entry: Its past ticks do not count: it starts now.
            replace: Replace another entry of that name that was added at run time.

        Raises:
            ConfigurationError: Another entry has that name, or code declares it.
        """
        require_instance("entry", entry, ScheduleEntry)
        # Names are compared across streams without a lock: two hosts that add one name on two streams at the
        # same moment both succeed. Their fires then share ids, and code that dedupes by id drops one of them.
        for record in (await self._records(entry.name))[1]:
            if record.entry.stream != entry.stream:
                if not replace or record.origin is Origin.CODE:
                    raise ConfigurationError(
                        f"entry {printable(entry.name)!r} exists on another stream; remove it first"
                    )
                await self._store.remove(record.entry.stream, entry.name)
        match await self._store.declare(entry, Origin.RUNTIME, replace_existing=replace):
            case Declared.IN_CODE:
                raise ConfigurationError(
                    f"entry {printable(entry.name)!r} is declared in code; change it there or use another name"
                )
            case Declared.EXISTS:
                raise ConfigurationError(
                    f"entry {printable(entry.name)!r} exists and is different; pass replace=True to change it"
                )
            case Declared.SAME:
                return False
            case Declared.ADDED | Declared.CHANGED:
                return True

    async def remove(self, name: str) -> bool:
        """Remove an entry and its history. False if there is none of that name.

        An entry that code declares is stored again when a process with that code starts: pause it instead.
        A definition that cannot be decoded is removed too.
        """
        removed = False
        for stream in (await self._snapshot()).versions:
            removed = await self._store.remove(stream, name) or removed
        return removed

    async def pause(self, name: str) -> bool:
        """Pause an entry on all hosts, immediately; restarts keep the pause. False if it is paused already.

        Raises:
            ConfigurationError: There is no entry of that name.
        """
        _, records = await self._named(name)
        return any([await self._store.pause(record) for record in records])

    async def resume(self, name: str) -> bool:
        """Resume a paused entry. False if it is not paused.

        Ticks of the pause are dropped, neither fired nor missed; a tick that jitter delays until later is fired.
        A one-off time that passed during the pause is a late tick: the entry's catch-up policy decides.
        """
        now, records = await self._named(name)
        return any([await self._store.resume(record, _decided_after_pause(record, now)) for record in records])

    async def list_entries(self) -> list[ScheduleStatus]:
        """Return all entries of the group by name, paused and undeclared ones too."""
        _, records = await self._records()
        return [_status(record) for record in sorted(records, key=lambda record: record.entry.name)]

    async def next_runs(self, count: int, *, name: str | None = None) -> list[UpcomingRun]:
        """Return the next runs of the group (or of one entry) in the order they will be fired.

        Paused entries have none. A tick that is overdue now is not included.
        """
        require_positive("count", count)
        now, records = await self._records(name)
        ahead = (_runs(record, now) for record in records if self._is_live(record))
        return [
            UpcomingRun(run_name, from_ms(due), from_ms(at)) for at, due, run_name in islice(heapq.merge(*ahead), count)
        ]

    def _is_live(self, record: Record) -> bool:
        """Return True if the entry is fired."""
        return record.paused_since is None

    async def _named(self, name: str) -> tuple[int, list[Record]]:
        now, found = await self._records(name)
        if not found:
            raise ConfigurationError(f"there is no entry named {printable(name)!r}; list_entries() returns all entries")
        return now, found

    async def _snapshot(self) -> ScheduleSnapshot:
        snapshot = await self._store.snapshot()
        for error in snapshot.refused.values():
            raise error  # a result for some of the streams would be read as one for all of them
        return snapshot

    async def _records(self, name: str | None = None) -> tuple[int, list[Record]]:
        snapshot = await self._snapshot()
        found: list[Record] = []
        for stream in snapshot.versions:
            _, records, _ = await self._store.load(stream)
            found += [record for record in records if name is None or record.entry.name == name]
        return snapshot.now, found


def _status(record: Record) -> ScheduleStatus:
    upcoming = record.entry.when.next_after(record.decided)
    due = None if upcoming is None or record.paused_since is not None else record.entry.fire_at(upcoming)
    return ScheduleStatus(
        entry=record.entry,
        origin=record.origin,
        next_run=None if due is None else from_ms(due),
        last_fire=None if record.last_fire is None else from_ms(record.last_fire),
        fired=record.fired,
        missed=record.missed,
        paused_since=None if record.paused_since is None else from_ms(record.paused_since),
    )


def _decided_after_pause(record: Record, now: int) -> int:
    once = isinstance(record.entry.when, Once)
    return record.decided if once else last_passed(record.entry, record.decided, now)


def _runs(record: Record, now: int) -> Iterator[tuple[int, int, str]]:
    """Yield (fire time, due time, name) after ``now``, in the order in which the loop fires them."""
    entry, previous = record.entry, 0
    tick = entry.when.next_after(max(record.decided, now - entry.jitter_ms))
    while tick is not None:
        previous = max(previous, entry.fire_at(tick))  # a delayed tick delays those behind it
        if previous > now:
            yield previous, tick, entry.name
        tick = entry.when.next_after(tick)
