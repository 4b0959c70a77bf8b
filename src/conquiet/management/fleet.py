"""Read all streams at a cost that allows a page to refresh every second.

    StreamDirectory    finds the streams: a few SCAN steps at a time, never KEYS
    read_fleet         one script call for a hundred streams (on a cluster: for each slot)
    count_retrying     how many of the delayed messages are retries
    flow               entries added and acknowledged per second between two readings

``overview.describe_stream`` reports more about one stream and sends several commands for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from conquiet.management.partitions import PartitionedStreams, companion, is_companion, names_of, sum_known
from conquiet.management.redis_admin import RedisAdmin, display_name
from conquiet.processor.partitions import read_layout
from conquiet.redis_transport.ids import milliseconds_of, parse_id
from conquiet.redis_transport.replies import group_lag, server_ms, text
from conquiet.redis_transport.routing import split_by_slot

if TYPE_CHECKING:
    from conquiet.redis_transport.commands import Word

PER_CALL: Final = 100
"""Streams read by one script call. It blocks the server for about 1.5 ms."""

MOST_STREAMS: Final = 5_000
_SCAN_COUNT: Final = 1_000
_SCAN_STEPS: Final = 20
_OWN_PREFIX: Final = b"conquiet:"
_MOST_GROUPS: Final = 20

_FLEET: Final = """
local function field(row, name)
  for i = 1, #row, 2 do if row[i] == name then return row[i + 1] end end
  return false
end
local found = {}
for i = 1, #KEYS, 5 do
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
    local layout = redis.pcall('HMGET', KEYS[i + 4], 'count', 'previous', 'next')
    found[#found + 1] = {
      field(info, 'length'), field(info, 'entries-added'), field(info, 'last-generated-id'),
      type(delayed) == 'number' and delayed or 0, type(dead) == 'number' and dead or 0,
      paused.err and {} or paused, #rows, groups, layout.err and {} or layout
    }
  end
end
return {redis.call('TIME'), found}
"""
"""Describe streams. KEYS: for each its key, delayed set, dead letters, pauses and number of partitions; ARGV: most
groups of each. No payload leaves the server: XINFO STREAM and XRANGE read entries, and only their ids are returned."""


MOST_DELAYED: Final = 1_000
"""Delayed messages of one stream that ``count_retrying`` reads."""

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
"""Count retries. KEYS: delayed sets; ARGV: most messages, most bytes of each. In an envelope the field ``attempt``
precedes the data, so the first match is the field of the envelope."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group of a stream.

    Attributes:
        consumers: Consumers of the group, dead ones included.
        pending: Entries delivered and not acknowledged.
        lag: Entries not delivered yet; None if the server does not know.
        entries_read: Entries delivered so far; None if the server does not know.
        oldest_age_s: Age of the oldest entry that is not acknowledged; None if there is none.
    """

    name: str
    consumers: int
    pending: int
    lag: int | None
    entries_read: int | None
    oldest_age_s: float | None
    raw_name: bytes


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """One stream at one moment.

    Attributes:
        added: Entries ever added; None before Redis 7.
        paused: ``*`` if the whole stream is paused, else events.
        group_count: Number of groups; ``groups`` holds at most 20 of them.
        partitions: Number of partitions, summed in these figures.
    """

    key: str
    length: int
    added: int | None
    last_id: str
    delayed: int
    dead: int
    paused: tuple[str, ...]
    group_count: int
    groups: tuple[GroupSnapshot, ...]
    raw_key: bytes
    at_ms: int
    partitions: int = 1

    @property
    def lag(self) -> int | None:
        """Largest lag of a group; None if it is known for no group."""
        return max((one.lag for one in self.groups if one.lag is not None), default=None)

    @property
    def pending(self) -> int:
        """Entries in flight, of all groups."""
        return sum(one.pending for one in self.groups)

    @property
    def oldest_age_s(self) -> float | None:
        """Age of the oldest entry that some group has not acknowledged."""
        return max((one.oldest_age_s for one in self.groups if one.oldest_age_s is not None), default=None)

    @property
    def done(self) -> int | None:
        """Entries acknowledged so far, of all groups; None if the server does not know."""
        read = sum_known([one.entries_read for one in self.groups])
        return None if read is None else read - self.pending


@dataclass(frozen=True, slots=True)
class Flow:
    """Entries per second between two readings; None if the server does not count them."""

    per_s_in: float | None
    per_s_out: float | None


def flow(before: StreamSnapshot, after: StreamSnapshot) -> Flow:
    """Return the rates between two readings of one stream. Pure."""
    seconds = (after.at_ms - before.at_ms) / 1000
    if seconds <= 0:
        return Flow(None, None)
    return Flow(_rate(before.added, after.added, seconds), _rate(before.done, after.done, seconds))


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    # The counters of a stream or group that was deleted and created again restart at 0.
    return None if before is None or after is None else max(0.0, (after - before) / seconds)


def read_fleet(server: RedisAdmin, keys: Sequence[bytes]) -> list[StreamSnapshot]:
    """Return the streams of these keys, each with all its partitions. Deleted streams are left out."""
    found = _read(server, keys)
    parts = {key: names_of(key, one.partitions)[1:] for key, one in found.items() if one.partitions > 1}
    others = _read(server, [name for names in parts.values() for name in names])
    return [
        join_snapshots([one, *(others[name] for name in parts.get(key, ()) if name in others)])
        for key, one in found.items()
    ]


def _read(server: RedisAdmin, keys: Sequence[bytes]) -> dict[bytes, StreamSnapshot]:
    found: dict[bytes, StreamSnapshot] = {}
    for chunk in _chunks(keys, in_cluster=server.is_cluster):
        names: list[Word] = []
        for key in chunk:
            names += (key, *(companion(key, suffix) for suffix in (b"delayed", b"dead", b"paused", b"partitions")))
        time, rows = server.call("EVAL", _FLEET, len(names), *names, _MOST_GROUPS, stream=display_name(chunk[0]))
        now_ms = server_ms(time)
        found |= {key: _snapshot(key, row, now_ms) for key, row in zip(chunk, rows, strict=True) if row}
    return found


@dataclass(frozen=True, slots=True)
class DelayedCounts:
    """Counts of the delayed set of a stream.

    Attributes:
        retrying: Retries among the messages read.
        read_count: Messages read, in order of due time.
        total: Messages in the set.
    """

    retrying: int
    read_count: int
    total: int

    @property
    def is_exact(self) -> bool:
        """True if all messages were read."""
        return self.read_count >= self.total


def count_retrying(server: RedisAdmin, streams: Sequence[StreamSnapshot]) -> dict[bytes, DelayedCounts]:
    """Return how many delayed messages of these streams are retries.

    Reads at most 1,000 messages or one megabyte of each stream or partition.
    """
    members = {name: one.raw_key for one in streams for name in names_of(one.raw_key, one.partitions)}
    found: dict[bytes, list[list[int]]] = {one.raw_key: [] for one in streams}
    for chunk in _chunks(list(members), in_cluster=server.is_cluster, size=_RETRYING_PER_CALL):
        names: list[Word] = [companion(key, b"delayed") for key in chunk]
        reply = server.call("EVAL", _RETRYING, len(names), *names, MOST_DELAYED, _MOST_BYTES)
        for key, row in zip(chunk, reply, strict=True):
            found[members[key]].append(row)
    return {key: DelayedCounts(*(sum(column) for column in zip(*rows, strict=True))) for key, rows in found.items()}


def _chunks(keys: Sequence[bytes], *, in_cluster: bool, size: int = PER_CALL) -> Iterator[Sequence[bytes]]:
    """Split keys into chunks for one script call. On a cluster the keys of a chunk share a slot."""
    for those in split_by_slot(keys, in_cluster=in_cluster):
        for start in range(0, len(those), size):
            yield those[start : start + size]


def _snapshot(key: bytes, row: list[Any], now_ms: int) -> StreamSnapshot:
    length, added, last_id, delayed, dead, paused, group_count, groups, layout = row
    return StreamSnapshot(
        key=display_name(key),
        length=length,
        added=added,
        last_id=text(last_id),
        delayed=delayed,
        dead=dead,
        paused=tuple(sorted(map(display_name, paused))),
        group_count=group_count,
        groups=tuple(_group(one, length, now_ms) for one in groups),
        raw_key=key,
        at_ms=now_ms,
        partitions=read_layout(layout).to_read if layout else 1,
    )


def join_snapshots(partitions: Sequence[StreamSnapshot]) -> StreamSnapshot:
    """Return the partitions of a stream, partition 0 first, as one stream. Groups are joined by name. Pure."""
    first = partitions[0]
    if len(partitions) == 1:
        return first
    groups: dict[bytes, list[GroupSnapshot]] = {}
    for one in partitions:
        for group in one.groups:
            groups.setdefault(group.raw_name, []).append(group)
    return replace(
        first,
        length=sum(one.length for one in partitions),
        added=sum_known([one.added for one in partitions]),
        last_id=max((one.last_id for one in partitions), key=parse_id),
        delayed=sum(one.delayed for one in partitions),
        dead=sum(one.dead for one in partitions),
        paused=tuple(sorted({event for one in partitions for event in one.paused})),
        group_count=max(len(groups), *(one.group_count for one in partitions)),
        groups=tuple(_join_groups(those) for those in groups.values()),
    )


def _join_groups(groups: Sequence[GroupSnapshot]) -> GroupSnapshot:
    ages = [group.oldest_age_s for group in groups if group.oldest_age_s is not None]
    return replace(
        groups[0],
        consumers=max(group.consumers for group in groups),  # a worker has the same name in every partition
        pending=sum(group.pending for group in groups),
        lag=sum_known([group.lag for group in groups]),
        entries_read=sum_known([group.entries_read for group in groups]),
        oldest_age_s=max(ages, default=None),
    )


def _group(row: list[Any], length: int, now_ms: int) -> GroupSnapshot:
    name, consumers, pending, lag, entries_read, oldest_pending, first_waiting, last = row
    ids = [text(one) for one in (oldest_pending, first_waiting) if one]
    oldest_ms = min((milliseconds_of(one) for one in ids), default=None)
    return GroupSnapshot(
        name=display_name(name),
        consumers=consumers,
        pending=pending,
        lag=group_lag({b"lag": lag}, length=length, waiting=bool(first_waiting)),
        # The server counts from the first read of a group on; before that nothing was read.
        entries_read=0 if entries_read is None and last == b"0-0" else entries_read,
        oldest_age_s=None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
        raw_name=name,
    )


class StreamDirectory:
    """The keys of the streams of one server, found a few steps at a time.

    Each ``advance`` scans a part of the keyspace. A stream is forgotten after a complete pass that did not find it.
    """

    def __init__(self, *, most: int = MOST_STREAMS) -> None:
        self._most = most
        self._cursor = "0"
        self._node = 0
        self._known: set[bytes] = set()
        self._seen: set[bytes] = set()
        self.complete = False
        """True after a complete pass that found no more streams than the directory holds."""
        self.last_steps = 0
        """Number of SCAN commands of the last ``advance``."""

    def advance(self, server: RedisAdmin) -> None:
        """Scan the next part of the keyspace: 20 thousand keys, on a cluster one node after the other."""
        streams = PartitionedStreams(server)
        masters = server.masters()
        for step in range(_SCAN_STEPS):
            self.last_steps = step + 1
            self._node = min(self._node, len(masters) - 1)  # a node may have left the cluster
            reply = server.call_each(masters[self._node], "SCAN", self._cursor, "COUNT", _SCAN_COUNT, "TYPE", "stream")
            self._cursor = text(reply[0])
            self._add(streams.stream_of(key) for key in reply[1])
            if self._cursor == "0":
                self._node = (self._node + 1) % len(masters)
                if self._node == 0:
                    self._end_pass()
                    return

    def _end_pass(self) -> None:
        self.complete = len(self._seen) <= self._most
        self._known, self._seen = set(sorted(self._seen)[: self._most]), set()

    def _add(self, page: Iterable[bytes]) -> None:
        found = {key for key in page if is_shown(key)}
        self._seen |= found
        if len(self._known) < self._most:
            self._known |= found

    def keys(self) -> list[bytes]:
        """Return the known streams by name."""
        return sorted(self._known)


def is_shown(key: bytes) -> bool:
    """Return whether a stream belongs to the user, and not to the processor or the dashboard."""
    return not is_companion(key) and not key.startswith(_OWN_PREFIX)
