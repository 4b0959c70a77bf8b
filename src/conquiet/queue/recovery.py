"""Which pending entries are stale: found wherever they stand, at a cost that does not grow with the list.

Entries stand in the order of their ids. Walking that list for the idle ones costs the server 85 ms
per million entries, during which it serves nobody else. But a pending list is almost always long for
one of two reasons, and both are cheap:

    few entries in all                  one XPENDING … IDLE over the group
    a consumer died and left many       one XPENDING … IDLE over that consumer: the first rows are hits
    a live consumer holds thousands     its oldest rows, and one more page that moves on with each call

Which consumer is dead is only a guess (what ``idle`` counts changed in Redis 7.2), and it decides
about nothing but the order of looking: XCLAIM checks the idle time of each entry again.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from conquiet.queue.commands import StreamCommands
from conquiet.queue.replies import Pending, Standing, pending_rows, standings

SMALL_GROUP = 10_000
"""Up to so many pending entries the server walks the whole list: about a millisecond."""

PAGE = 1_000
"""Rows looked at on our side in one page of a live consumer's long list."""

MAX_PROBES = 64
"""Consumers looked at in one call. The next call goes on behind them."""

Call = Callable[[str, bytes], Any]


class Look(Enum):
    """How to look through one consumer's list."""

    WHOLE = "whole"
    PAGED = "paged"


class Probe(NamedTuple):
    """One consumer to look at."""

    consumer: bytes
    look: Look


def plan(known: Sequence[Standing], *, min_idle_ms: int, turn: int) -> list[Probe]:
    """Return whom to look at, the most promising first, and not more than a bounded number.

    Args:
        known: The group's consumers.
        min_idle_ms: How long an entry has to be idle.
        turn: How many consumers earlier calls have looked at: the list is turned by as many, so that
            everyone's turn comes.
    """
    holding = [standing for standing in known if standing.pending]
    quiet = [Probe(one.name, Look.WHOLE) for one in holding if one.idle_ms >= min_idle_ms]
    busy = [one for one in holding if one.idle_ms < min_idle_ms]
    short = [Probe(one.name, Look.WHOLE) for one in busy if one.pending <= PAGE]
    long = [Probe(one.name, Look.PAGED) for one in busy if one.pending > PAGE]
    # At least one long list gets its look each time, however many short ones there are.
    first = [*_turned(quiet, turn), *_turned(short, turn)][: MAX_PROBES - min(1, len(long))]
    return [*first, *_turned(long, turn)][:MAX_PROBES]


def _turned(probes: list[Probe], turn: int) -> list[Probe]:
    if not probes:
        return probes
    at = turn % len(probes)
    return probes[at:] + probes[:at]


class StaleFinder:
    """Finds stale entries of one group. Remembers only where it looked last."""

    def __init__(self, commands: StreamCommands, call: Call) -> None:
        self._commands = commands
        self._call = call
        self._cursors: dict[bytes, str] = {}
        self._turn = 0

    def find(self, *, min_idle_ms: int, count: int) -> list[Pending]:
        """Return at most ``count`` entries that were idle for ``min_idle_ms`` when the server was asked."""
        known = standings(self._call("XINFO CONSUMERS", self._commands.consumers()))
        total = sum(standing.pending for standing in known)
        if total == 0:
            return []
        if total <= SMALL_GROUP:
            return self._pending(count=count, min_idle_ms=min_idle_ms)
        names = {standing.name for standing in known}
        self._cursors = {name: cursor for name, cursor in self._cursors.items() if name in names}
        found: list[Pending] = []
        for probe in plan(known, min_idle_ms=min_idle_ms, turn=self._turn):
            missing = count - len(found)
            if missing <= 0:
                break
            self._turn += 1
            found += self._look(probe, min_idle_ms, missing)
        return found

    def _look(self, probe: Probe, min_idle_ms: int, count: int) -> list[Pending]:
        match probe.look:
            case Look.WHOLE:
                return self._pending(count=count, min_idle_ms=min_idle_ms, consumer=probe.consumer)
            case Look.PAGED:
                return self._look_at_pages(probe.consumer, min_idle_ms, count)

    def _look_at_pages(self, consumer: bytes, min_idle_ms: int, count: int) -> list[Pending]:
        head = self._pending(count=PAGE, consumer=consumer)
        found = [row for row in head if row.idle_ms >= min_idle_ms]
        if len(head) < PAGE or len(found) >= count:
            return found[:count]
        after = self._cursors.pop(consumer, head[-1].id)
        page = self._pending(count=PAGE, start=f"({max(after, head[-1].id, key=id_key)}", consumer=consumer)
        found += [row for row in page if row.idle_ms >= min_idle_ms]
        if len(found) > count:
            self._cursors[consumer] = found[count - 1].id  # the others were seen, not taken: they come first next time
        elif len(page) == PAGE:
            self._cursors[consumer] = page[-1].id
        return found[:count]

    def _pending(
        self, *, count: int, start: str = "-", min_idle_ms: int = 0, consumer: bytes | None = None
    ) -> list[Pending]:
        packed = self._commands.pending(count=count, start=start, min_idle_ms=min_idle_ms, consumer=consumer)
        return pending_rows(self._call("XPENDING", packed))


def id_key(message_id: str) -> tuple[int, int]:
    """Return what an entry id is ordered by."""
    milliseconds, _, sequence = message_id.partition("-")
    return int(milliseconds), int(sequence or 0)
