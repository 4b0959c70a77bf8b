"""Find stale pending entries at a cost that does not grow with the pending list.

The pending list is ordered by id. A scan of the whole list for idle entries costs the server 85 ms per million entries,
during which it serves no other client. But a pending list is almost always in one of these cases, and all are cheap:

    few entries in all                  one XPENDING … IDLE over the group
    a consumer died and left many       one XPENDING … IDLE over that consumer: the first rows are hits
    a live consumer holds thousands     its oldest rows, and one more page that advances with each call

Which consumer is dead is only a guess (the meaning of ``idle`` changed in Redis 7.2), and decides only the order of the
scan: XCLAIM checks the idle time of each entry again.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from conquiet.queue.commands import StreamCommands
from conquiet.redis_transport.ids import parse_id
from conquiet.redis_transport.replies import ConsumerInfo, Pending, consumer_infos, pending_rows

SMALL_GROUP = 10_000
"""Up to this many pending entries the server scans the whole list: about a millisecond."""

PAGE = 1_000
"""Rows of one page of a live consumer's long list."""

MAX_TARGETS = 64
"""Consumers scanned in one call. The next call continues after them."""

Call = Callable[[str, bytes], Any]


class ScanMode(Enum):
    """Ways to scan the pending list of one consumer."""

    WHOLE = "whole"
    PAGED = "paged"


class ScanTarget(NamedTuple):
    """One consumer to scan."""

    consumer: bytes
    mode: ScanMode


def plan(known: Sequence[ConsumerInfo], *, min_idle_ms: int, rotation: int) -> list[ScanTarget]:
    """Return at most ``MAX_TARGETS`` consumers to scan, the most promising first. Pure.

    Args:
        known: The group's consumers.
        min_idle_ms: How long an entry has to be idle.
        rotation: Number of consumers that earlier calls have scanned. The list is rotated by it, so that every
            consumer is scanned eventually.
    """
    holding = [one for one in known if one.pending]
    quiet = [ScanTarget(one.name, ScanMode.WHOLE) for one in holding if one.idle_ms >= min_idle_ms]
    busy = [one for one in holding if one.idle_ms < min_idle_ms]
    short = [ScanTarget(one.name, ScanMode.WHOLE) for one in busy if one.pending <= PAGE]
    long = [ScanTarget(one.name, ScanMode.PAGED) for one in busy if one.pending > PAGE]
    # At least one long list is scanned each time, for any number of short ones.
    first = [*_rotated(quiet, rotation), *_rotated(short, rotation)][: MAX_TARGETS - min(1, len(long))]
    return [*first, *_rotated(long, rotation)][:MAX_TARGETS]


def _rotated(targets: list[ScanTarget], rotation: int) -> list[ScanTarget]:
    if not targets:
        return targets
    at = rotation % len(targets)
    return targets[at:] + targets[:at]


class StaleScan:
    """Finds stale entries of one group. Remembers only its position."""

    def __init__(self, commands: StreamCommands, call: Call) -> None:
        self._commands = commands
        self._call = call
        self._cursors: dict[bytes, str] = {}
        self._rotation = 0

    def find(self, *, min_idle_ms: int, count: int, except_for: bytes | None = None) -> list[Pending]:
        """Return at most ``count`` entries that the server reported as idle for ``min_idle_ms``.

        Args:
            min_idle_ms: Least idle time of an entry.
            count: Most entries to return.
            except_for: Consumer to leave out.
        """
        everyone = consumer_infos(self._call("XINFO CONSUMERS", self._commands.consumers()))
        known = [one for one in everyone if one.name != except_for]
        total = sum(one.pending for one in known)
        if total == 0:
            return []
        # XPENDING over the group cannot leave one consumer out: its rows could be all that the server returns.
        hides_none = all(not one.pending for one in everyone if one.name == except_for)
        if total <= SMALL_GROUP and hides_none:
            return self._pending(count=count, min_idle_ms=min_idle_ms)
        names = {one.name for one in known}
        self._cursors = {name: cursor for name, cursor in self._cursors.items() if name in names}
        found: list[Pending] = []
        for target in plan(known, min_idle_ms=min_idle_ms, rotation=self._rotation):
            missing = count - len(found)
            if missing <= 0:
                break
            self._rotation += 1
            found += self._scan(target, min_idle_ms, missing)
        return found

    def _scan(self, target: ScanTarget, min_idle_ms: int, count: int) -> list[Pending]:
        match target.mode:
            case ScanMode.WHOLE:
                return self._pending(count=count, min_idle_ms=min_idle_ms, consumer=target.consumer)
            case ScanMode.PAGED:
                return self._scan_pages(target.consumer, min_idle_ms, count)

    def _scan_pages(self, consumer: bytes, min_idle_ms: int, count: int) -> list[Pending]:
        head = self._pending(count=PAGE, consumer=consumer)
        found = [row for row in head if row.idle_ms >= min_idle_ms]
        if len(head) < PAGE or len(found) >= count:
            return found[:count]
        after = self._cursors.pop(consumer, head[-1].id)
        page = self._pending(count=PAGE, start=f"({max(after, head[-1].id, key=parse_id)}", consumer=consumer)
        found += [row for row in page if row.idle_ms >= min_idle_ms]
        if len(found) > count:
            self._cursors[consumer] = found[count - 1].id  # the rest was found, not returned: it comes first next time
        elif len(page) == PAGE:
            self._cursors[consumer] = page[-1].id
        return found[:count]

    def _pending(
        self, *, count: int, start: str = "-", min_idle_ms: int = 0, consumer: bytes | None = None
    ) -> list[Pending]:
        packed = self._commands.pending(count=count, start=start, min_idle_ms=min_idle_ms, consumer=consumer)
        return pending_rows(self._call("XPENDING", packed))
