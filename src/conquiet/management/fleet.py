"""All streams at a glance, cheaply enough for a page that is refreshed every second.

    StreamDirectory    finds the streams: a few SCAN steps at a time, never KEYS
    read_fleet         one script call for a hundred streams, so a thousand cost ten commands; in a Redis Cluster one
                       for each stream: a script may use keys of one slot only
    count_retrying     how many of the delayed messages wait for a further attempt
    flow               what came in and went out per second between two readings

``overview.describe_stream`` reports more about one stream, and sends several commands for each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from conquiet.management.overview import companion
from conquiet.management.redis_admin import RedisAdmin, display_name
from conquiet.redis_transport.ids import milliseconds_of
from conquiet.redis_transport.replies import text

if TYPE_CHECKING:
    from conquiet.redis_transport.commands import Word
    from conquiet.redis_transport.routing import Address

T = TypeVar("T")

PER_CALL: Final = 100
"""Streams read by one script call: about a millisecond and a half, during which the server does nothing else."""

MOST_STREAMS: Final = 5_000
_SCAN_COUNT: Final = 1_000
_OWN_PREFIX: Final = b"conquiet:"
_MOST_GROUPS: Final = 20

_FLEET: Final = """
local function field(row, name)
  for i = 1, #row, 2 do if row[i] == name then return row[i + 1] end end
  return false
end
local found = {}
for i = 1, #KEYS, 4 do
  local key = KEYS[i]
  local info = redis.pcall('XINFO', 'STREAM', key)
  if info.err then
    found[#found + 1] = false
  else
    local groups = {}
    local rows = redis.call('XINFO', 'GROUPS', key)
    for at = 1, math.min(#rows, tonumber(ARGV[1])) do
      local row = rows[at]
      local name, last = field(row, 'name'), field(row, 'last-delivered-id')
      local pending = redis.call('XPENDING', key, name)
      local waiting = redis.call('XRANGE', key, '(' .. last, '+', 'COUNT', 1)
      groups[at] = {
        name, field(row, 'consumers'), field(row, 'pending'), field(row, 'lag'), field(row, 'entries-read'),
        pending[2] or '', waiting[1] and waiting[1][1] or '', last
      }
    end
    local delayed, dead = redis.pcall('ZCARD', KEYS[i + 1]), redis.pcall('XLEN', KEYS[i + 2])
    local paused = redis.pcall('HKEYS', KEYS[i + 3])
    found[#found + 1] = {
      field(info, 'length'), field(info, 'entries-added'), field(info, 'last-generated-id'),
      type(delayed) == 'number' and delayed or 0, type(dead) == 'number' and dead or 0,
      paused.err and {} or paused, #rows, groups
    }
  end
end
return {redis.call('TIME'), found}
"""
"""Describe streams. KEYS: for each its key, delayed set, dead letters and pauses; ARGV: most groups of each. Payloads
stay on the server: XINFO STREAM and XRANGE read entries, and only their ids are returned."""


MOST_DELAYED: Final = 1_000
"""Delayed messages of one stream that ``count_retrying`` looks at."""

_RETRYING_PER_CALL: Final = 10
_MOST_BYTES: Final = 1_000_000

_RETRYING: Final = """
local found = {}
for at, key in ipairs(KEYS) do
  local total = redis.pcall('ZCARD', key)
  local retrying, seen, size = 0, 0, 0
  if type(total) ~= 'number' then total = 0 end
  while seen < math.min(total, tonumber(ARGV[1])) and size < tonumber(ARGV[2]) do
    local page = redis.call('ZRANGE', key, seen, math.min(seen + 20, tonumber(ARGV[1])) - 1)
    if #page == 0 then break end
    for _, raw in ipairs(page) do
      size = size + #raw
      if tonumber(string.match(raw, '"attempt":(%d+)') or 1) > 1 then retrying = retrying + 1 end
    end
    seen = seen + #page
  end
  found[at] = {retrying, seen, total}
end
return found
"""
"""Count retries. KEYS: delayed sets; ARGV: most messages, most bytes of each. The attempt stands before the data in a
message of ours, so the first one is the envelope's."""


@dataclass(frozen=True, slots=True)
class GroupGlance:
    """One group of a stream.

    Attributes:
        consumers: Names the group has, dead ones included.
        pending: Delivered and not acknowledged.
        lag: Not delivered yet; None if the server does not know.
        entries_read: Delivered so far; None if the server does not know.
        oldest_age_s: Age of the oldest entry that is not done; None if all are.
    """

    name: str
    consumers: int
    pending: int
    lag: int | None
    entries_read: int | None
    oldest_age_s: float | None
    raw_name: bytes


@dataclass(frozen=True, slots=True)
class StreamGlance:
    """One stream at one moment.

    Attributes:
        added: Entries ever added; None before Redis 7.
        paused: ``*`` if the whole stream is paused, else events.
        group_count: Groups there are; at most 20 of them are in ``groups``.
    """

    key: str
    length: int
    added: int | None
    last_id: str
    delayed: int
    dead: int
    paused: tuple[str, ...]
    group_count: int
    groups: tuple[GroupGlance, ...]
    raw_key: bytes
    at_ms: int

    @property
    def lag(self) -> int | None:
        """Entries not delivered, of the group that has most; None if no group knows."""
        return max((one.lag for one in self.groups if one.lag is not None), default=None)

    @property
    def pending(self) -> int:
        """Entries in flight, of all groups."""
        return sum(one.pending for one in self.groups)

    @property
    def oldest_age_s(self) -> float | None:
        """Age of the oldest entry that is not done in some group."""
        return max((one.oldest_age_s for one in self.groups if one.oldest_age_s is not None), default=None)

    @property
    def done(self) -> int | None:
        """Entries acknowledged so far, of all groups; None if the server does not know."""
        read = [one.entries_read for one in self.groups]
        known = [one for one in read if one is not None]
        return None if len(known) < len(read) else sum(known) - self.pending


@dataclass(frozen=True, slots=True)
class Flow:
    """Entries per second between two readings; None if the server does not count them."""

    per_s_in: float | None
    per_s_out: float | None


def flow(before: StreamGlance, after: StreamGlance) -> Flow:
    """Return the rates between two readings of one stream. Pure."""
    seconds = (after.at_ms - before.at_ms) / 1000
    if seconds <= 0:
        return Flow(None, None)
    return Flow(_rate(before.added, after.added, seconds), _rate(before.done, after.done, seconds))


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    # A stream or a group that was created again counts from 0.
    return None if before is None or after is None else max(0.0, (after - before) / seconds)


def read_fleet(server: RedisAdmin, keys: Sequence[bytes]) -> list[StreamGlance]:
    """Return the streams of these keys. Those that are gone are left out."""
    found: list[StreamGlance] = []
    for chunk in chunks_of(server, keys, PER_CALL):
        names: list[Word] = []
        for key in chunk:
            names += (key, companion(key, b"delayed"), companion(key, b"dead"), companion(key, b"paused"))
        time, rows = server.call("EVAL", _FLEET, len(names), *names, _MOST_GROUPS, stream=display_name(chunk[0]))
        now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
        found += [_glance(key, row, now_ms) for key, row in zip(chunk, rows, strict=True) if row]
    return found


def chunks_of(server: RedisAdmin, keys: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return the parts of a list that one script call may read: each alone in a cluster, ``size`` of them otherwise."""
    step = 1 if server.is_cluster else size
    return (keys[start : start + step] for start in range(0, len(keys), step))


@dataclass(frozen=True, slots=True)
class DelayedCounts:
    """What waits in the delayed set of a stream.

    Attributes:
        retrying: Messages that wait for a further attempt, of those looked at.
        looked_at: Messages that were looked at, those that are due first.
        total: Messages in the set.
    """

    retrying: int
    looked_at: int
    total: int

    @property
    def is_exact(self) -> bool:
        """True if all messages were looked at."""
        return self.looked_at >= self.total


def count_retrying(server: RedisAdmin, keys: Sequence[bytes]) -> dict[bytes, DelayedCounts]:
    """Return how many delayed messages of these streams are retries. At most 1,000 messages, or a megabyte, of each."""
    found: dict[bytes, DelayedCounts] = {}
    for chunk in chunks_of(server, keys, _RETRYING_PER_CALL):
        names = [companion(key, b"delayed") for key in chunk]
        words: list[Word] = [*names, MOST_DELAYED, _MOST_BYTES]
        reply = server.call("EVAL", _RETRYING, len(names), *words, stream=display_name(chunk[0]))
        found |= {key: DelayedCounts(*row) for key, row in zip(chunk, reply, strict=True)}
    return found


def _glance(key: bytes, row: list[Any], now_ms: int) -> StreamGlance:
    length, added, last_id, delayed, dead, paused, group_count, groups = row
    return StreamGlance(
        key=display_name(key),
        length=length,
        added=added,
        last_id=text(last_id),
        delayed=delayed,
        dead=dead,
        paused=tuple(sorted(map(display_name, paused))),
        group_count=group_count,
        groups=tuple(_group(one, now_ms) for one in groups),
        raw_key=key,
        at_ms=now_ms,
    )


def _group(row: list[Any], now_ms: int) -> GroupGlance:
    name, consumers, pending, lag, entries_read, oldest_pending, first_waiting, last = row
    ids = [text(one) for one in (oldest_pending, first_waiting) if one]
    oldest_ms = min((milliseconds_of(one) for one in ids), default=None)
    return GroupGlance(
        name=display_name(name),
        consumers=consumers,
        pending=pending,
        lag=lag if first_waiting else 0,
        # The server does not count for a group before its first read; nothing was read by then.
        entries_read=0 if entries_read is None and last == b"0-0" else entries_read,
        oldest_age_s=None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
        raw_name=name,
    )


class StreamDirectory:
    """The keys of the streams of one server, found a few steps at a time.

    Each ``advance`` scans a part of the keyspace. A stream stays known until a whole pass did not see it.
    """

    def __init__(self, *, most: int = MOST_STREAMS) -> None:
        self._most = most
        self._left: list[tuple[Address | None, str]] = []
        self._known: set[bytes] = set()
        self._seen: set[bytes] = set()
        self.complete = False
        """A whole pass was made, and there are no more streams than the directory holds."""

    def advance(self, server: RedisAdmin, *, steps: int = 20) -> None:
        """Scan the next part of the keyspace: ``steps`` thousand keys."""
        for _ in range(steps):
            if not self._left:  # a new pass, over each master of a cluster
                self._left = [(master, "0") for master in server.masters()]
            master, cursor = self._left[0]
            reply = server.call_each(master, "SCAN", cursor, "COUNT", _SCAN_COUNT, "TYPE", "stream")
            self._add(reply[1])
            cursor = text(reply[0])
            self._left[:1] = [] if cursor == "0" else [(master, cursor)]
            if not self._left:
                self.complete = len(self._seen) <= self._most
                self._known, self._seen = set(sorted(self._seen)[: self._most]), set()
                return

    def _add(self, page: Iterable[bytes]) -> None:
        found = {key for key in page if is_shown(key)}
        self._seen |= found
        if len(self._known) < self._most:
            self._known |= found

    def keys(self) -> list[bytes]:
        """Return the known streams by name."""
        return sorted(self._known)


def is_shown(key: bytes) -> bool:
    """Return whether a stream is a user's: not kept by the processor beside another, nor by the dashboard."""
    beside = b"}" in key and key.endswith((b":dead", b":wake"))
    return not beside and not key.startswith(_OWN_PREFIX)
