"""Dead letters for a page: the newest first, a few at a time, and what most of them died of.

The size of what is read does not depend on how many there are. Counting all of a million takes a walk over all of them:
that is a bulk run (``bulk_runs``), not a page.
"""

import base64
import contextlib
import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from conquiet.management.overview import companion
from conquiet.management.partitions import partition_keys
from conquiet.management.redis_admin import RedisAdmin, as_bytes, display_name
from conquiet.processor.dead_letters import EVERYTHING, DeadFilter, DeadMessage, read_dead_message
from conquiet.redis_transport.ids import parse_id
from conquiet.redis_transport.replies import text

__all__ = [
    "CauseSample",
    "DeadFilter",
    "DeadLetterGroup",
    "DeadLetterPage",
    "DeadMessage",
    "list_newest",
    "sample_groups",
    "show_dead_letter",
    "stream_of_token",
    "stream_token",
]

SAMPLE: Final = 500
"""Dead letters that ``sample_groups`` reads at once unless more are asked for."""

MOST_SAMPLED: Final = 5_000
"""Most dead letters that ``sample_groups`` reads at once. Older ones are read by the next call."""

_STEP: Final = 100
_MOST_BYTES: Final = 4_000_000
_MOST_READ: Final = 2_000
"""A filter that matches little stops after so many: the page says where it stopped, and goes on from there."""

_PAGE: Final = """
local found = {}
local size = 0
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  size = size + #entry[2][2]
  if #found > 0 and size > tonumber(ARGV[3]) then break end
  found[#found + 1] = entry
end
return found
"""
"""Read the newest entries up to an id, and no more than so many bytes. KEYS: dead letters; ARGV: from, count, bytes."""


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters, newest first.

    Attributes:
        items: Those that the filter accepts.
        total: How many the stream has, whatever the filter.
        looked_at: How many were read to find them.
        older: Id to go on from; None if all were seen.
    """

    items: tuple[DeadMessage, ...]
    total: int
    looked_at: int
    older: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one event that died of one error, among the newest.

    Attributes:
        count: How many of those that were looked at.
        times_ms: When each of them died.
    """

    event: str
    cause: str
    count: int
    first_ms: int
    last_ms: int
    example_id: str
    times_ms: tuple[int, ...]


def list_newest(
    server: RedisAdmin, stream: bytes, *, where: DeadFilter = EVERYTHING, limit: int = 50, before: str | None = None
) -> DeadLetterPage:
    """Return up to ``limit`` dead letters that match, newest first, from before the id ``before`` on."""
    keys = partition_keys(server, stream)
    total = sum(int(server.call("XLEN", companion(key, b"dead"), stream=display_name(key))) for key in keys)
    items: list[DeadMessage] = []
    looked_at, last = 0, before
    for one in _newest(server, stream, before, _MOST_READ):
        looked_at, last = looked_at + 1, one.id
        if where.accepts(one):
            items.append(one)
        if len(items) >= limit:
            return DeadLetterPage(tuple(items), total, looked_at, last)
    return DeadLetterPage(tuple(items), total, looked_at, last if looked_at >= _MOST_READ else None)


@dataclass(frozen=True, slots=True)
class CauseSample:
    """What some dead letters died of.

    Attributes:
        groups: By event and error, most frequent first.
        looked_at: Dead letters that were read.
        older: Id to go on from; None if there are no older ones.
    """

    groups: tuple[DeadLetterGroup, ...]
    looked_at: int
    older: str | None


def sample_groups(server: RedisAdmin, stream: bytes, *, sample: int = SAMPLE, before: str | None = None) -> CauseSample:
    """Return what the newest dead letters died of, or the newest before an id. At most 5,000 are read."""
    members: dict[tuple[str, str], list[DeadMessage]] = {}
    looked_at, last, most = 0, None, min(sample, MOST_SAMPLED)
    for one in _newest(server, stream, before, most):
        looked_at, last = looked_at + 1, one.id
        members.setdefault((one.record.event, one.record.error_type or one.record.reason), []).append(one)
    groups = [
        DeadLetterGroup(
            event,
            cause,
            len(those),
            first_ms=those[-1].died_ms,
            last_ms=those[0].died_ms,
            example_id=those[0].id,
            times_ms=tuple(one.died_ms for one in those),
        )
        for (event, cause), those in members.items()
    ]
    ordered = sorted(groups, key=lambda one: (-one.count, one.event, one.cause))
    return CauseSample(tuple(ordered), looked_at, last if looked_at >= most else None)


def show_dead_letter(server: RedisAdmin, stream: bytes, dead_id: str) -> DeadMessage | None:
    """Return one dead letter; None if it is gone."""
    for key in partition_keys(server, stream):
        reply = server.call("XRANGE", companion(key, b"dead"), dead_id, dead_id, "COUNT", 1, stream=display_name(key))
        if reply:
            return _message(reply[0])
    return None


def _newest(server: RedisAdmin, stream: bytes, before: str | None, most: int) -> Iterator[DeadMessage]:
    """Read the newest of all partitions, newest first."""
    each = [_newest_of(server, key, before, most) for key in partition_keys(server, stream)]
    merged = heapq.merge(*each, key=lambda one: parse_id(one.id), reverse=True)
    return itertools.islice(merged, most)


def _newest_of(server: RedisAdmin, stream: bytes, before: str | None, most: int) -> Iterator[DeadMessage]:
    start = "+" if before is None else f"({before}"
    read = 0
    while read < most:
        reply: list[Any] = server.call(
            *("EVAL", _PAGE, 1, companion(stream, b"dead"), start, min(_STEP, most - read), _MOST_BYTES),
            stream=display_name(stream),
        )
        if not reply:
            return
        for entry in reply:
            read += 1
            yield _message(entry)
        start = f"({text(reply[-1][0])}"


def _message(entry: Any) -> DeadMessage:
    return read_dead_message(entry[0], entry[1])


def stream_token(key: bytes | str) -> str:
    """Return a stream's key as text that survives a URL and a form: as it is if it is UTF-8, else encoded."""
    raw = as_bytes(key)
    try:
        found = raw.decode()
    except UnicodeDecodeError:
        return "b64:" + base64.urlsafe_b64encode(raw).decode()
    return found


def stream_of_token(token: str) -> bytes:
    """Return the key of a token of :func:`stream_token`. A name that is UTF-8 has one token only: itself."""
    if token.startswith("b64:"):
        with contextlib.suppress(ValueError):
            raw = base64.urlsafe_b64decode(token[4:].encode())
            if stream_token(raw) == token:
                return raw
    return token.encode("utf-8", "surrogatepass")
