"""Read dead letters for a page: newest first, a page at a time, and their most frequent causes.

The amount read does not depend on the number of dead letters. An exact count has to read all of them, which a bulk run
does (``bulk_runs``).
"""

import base64
import contextlib
import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from conquiet.management.partitions import companion, partition_keys
from conquiet.management.redis_admin import RedisAdmin, as_bytes, display_name, utf8_name
from conquiet.processor.dead_letter_id import is_dead_id, parse_dead_id
from conquiet.processor.dead_letters import EVERYTHING, DeadFilter, DeadMessage, read_dead_message
from conquiet.redis_transport.replies import text

__all__ = [
    "CauseSample",
    "DeadFilter",
    "DeadLetterPage",
    "DeadMessage",
    "SampledCause",
    "dead_id_in",
    "list_newest",
    "sample_causes",
    "show_dead_letter",
    "stream_of_token",
    "stream_token",
]

SAMPLE: Final = 500
"""Default number of dead letters that ``sample_causes`` reads."""

MOST_SAMPLED: Final = 5_000
"""Most dead letters that one call of ``sample_causes`` reads. The next call reads older ones."""

_STEP: Final = 100
_MOST_BYTES: Final = 4_000_000
_MOST_READ: Final = 2_000
"""Most dead letters read for one page. If few of them match the filter, ``older`` continues from here."""

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
"""Read the newest entries up to an id, within a limit of bytes. KEYS: dead letters; ARGV: from, count, bytes."""


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters, newest first.

    Attributes:
        items: Dead letters that match the filter.
        total: Dead letters of the stream, without the filter.
        read_count: Dead letters read.
        older: Id to continue from; None if all were read.
    """

    items: tuple[DeadMessage, ...]
    total: int
    read_count: int
    older: str | None


@dataclass(frozen=True, slots=True)
class SampledCause:
    """Dead letters of one event with one error, among the newest.

    Attributes:
        count: How many of the dead letters read.
        times_ms: Time of each dead letter.
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
    """Return up to ``limit`` matching dead letters, newest first; with ``before``, only older ones than that id."""
    keys = partition_keys(server, stream)
    total = sum(int(server.call("XLEN", companion(key, b"dead"), stream=display_name(key))) for key in keys)
    items: list[DeadMessage] = []
    read_count, last = 0, before
    for one in _newest(server, stream, before, _MOST_READ):
        read_count, last = read_count + 1, one.id
        if where.accepts(one):
            items.append(one)
        if len(items) >= limit:
            return DeadLetterPage(tuple(items), total, read_count, last)
    return DeadLetterPage(tuple(items), total, read_count, last if read_count >= _MOST_READ else None)


@dataclass(frozen=True, slots=True)
class CauseSample:
    """Causes of some dead letters.

    Attributes:
        causes: By event and error, most frequent first.
        read_count: Dead letters read.
        older: Id to continue from; None if there are no older ones.
    """

    causes: tuple[SampledCause, ...]
    read_count: int
    older: str | None


def sample_causes(server: RedisAdmin, stream: bytes, *, sample: int = SAMPLE, before: str | None = None) -> CauseSample:
    """Return the causes of the newest dead letters, or of the newest before an id. Reads at most 5,000."""
    members: dict[tuple[str, str], list[DeadMessage]] = {}
    read_count, last, most = 0, None, min(sample, MOST_SAMPLED)
    for one in _newest(server, stream, before, most):
        read_count, last = read_count + 1, one.id
        members.setdefault((one.record.event, one.record.error_type or one.record.reason), []).append(one)
    causes = [
        SampledCause(
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
    ordered = sorted(causes, key=lambda one: (-one.count, one.event, one.cause))
    return CauseSample(tuple(ordered), read_count, last if read_count >= most else None)


def show_dead_letter(server: RedisAdmin, stream: bytes, dead_id: str) -> DeadMessage | None:
    """Return one dead letter; None if it does not exist."""
    wanted = parse_dead_id(dead_id)
    keys = partition_keys(server, stream)
    if wanted.partition >= len(keys):
        return None
    key, entry_id = keys[wanted.partition], wanted.entry_id
    reply = server.call("XRANGE", companion(key, b"dead"), entry_id, entry_id, stream=display_name(key))
    return read_dead_message(*reply[0], partition=wanted.partition) if reply else None


def dead_id_in(given: str) -> str | None:
    """Return a text from outside if it has the form of a dead letter's id, else None."""
    return given if is_dead_id(given) else None


def _newest(server: RedisAdmin, stream: bytes, before: str | None, most: int) -> Iterator[DeadMessage]:
    """Yield the dead letters of all partitions, newest first."""
    each = [_newest_of(server, key, index, before, most) for index, key in enumerate(partition_keys(server, stream))]
    merged = heapq.merge(*each, key=lambda one: parse_dead_id(one.id), reverse=True)
    return itertools.islice(merged, most)


def _newest_of(
    server: RedisAdmin, stream: bytes, partition: int, before: str | None, most: int
) -> Iterator[DeadMessage]:
    start = "+" if before is None else parse_dead_id(before).start_before(partition)
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
            yield read_dead_message(*entry, partition=partition)
        start = f"({text(reply[-1][0])}"


def stream_token(key: bytes | str) -> str:
    """Return a stream's key as text for URLs and forms: unchanged if it is UTF-8, else encoded in base64."""
    raw = as_bytes(key)
    found = utf8_name(raw)
    return "b64:" + base64.urlsafe_b64encode(raw).decode() if found is None else found


def stream_of_token(token: str) -> bytes:
    """Return the key of a token of :func:`stream_token`. The only token of a UTF-8 name is the name."""
    if token.startswith("b64:"):
        with contextlib.suppress(ValueError):
            raw = base64.urlsafe_b64decode(token[4:].encode())
            if stream_token(raw) == token:
                return raw
    return token.encode("utf-8", "surrogatepass")
