"""Describe streams, their groups and consumers. Uses SCAN and XINFO with limits, never KEYS."""

from contextlib import suppress
from typing import Any, NamedTuple

from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive
from conquiet.errors import GroupMissingError, NoSuchStreamError, WrongKeyTypeError
from conquiet.management.liveness import ALIVE_S, consumer_state, read_liveness, read_unlisted, server_counts_attempts
from conquiet.management.models import ConsumerReport, ConsumerState, GroupReport, StreamList, StreamReport
from conquiet.management.partitions import PartitionedStreams, companion, is_companion, join_reports, partition_keys
from conquiet.management.redis_admin import RedisAdmin, as_bytes, display_name, require_admin
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError
from conquiet.redis_transport.ids import milliseconds_of
from conquiet.redis_transport.replies import ConsumerInfo, as_mapping, consumer_infos, group_lag, text

_SCAN_COUNT = 1_000


class _Context(NamedTuple):
    """Values that all groups of one report share."""

    length: int
    now_ms: int
    alive_s: float
    counts_attempts: bool


def list_streams(
    server: RedisAdmin, *, pattern: str = "*", limit: int = 100, max_keys: int = 100_000, alive_s: float = ALIVE_S
) -> StreamList:
    """Describe the streams with a key that matches ``pattern``. Streams that the processor stores are left out.

    Args:
        server: The Redis.
        pattern: Pattern of SCAN.
        limit: Most streams described.
        max_keys: Most keys scanned. On a server with millions of other keys the list is incomplete, and marked so.
        alive_s: See ``ALIVE_S``.

    Raises:
        ConfigurationError: ``limit`` or ``max_keys`` is not a positive number.
        QueueError: The server returned an error or did not reply. No stream is left out because of an error.
    """
    require_positive("limit", limit)
    require_positive("max_keys", max_keys)
    keys, complete = _find(require_admin(server), pattern, limit, max_keys)
    found = []
    for key in keys:
        # Deleted since SCAN returned it, or replaced by a key of another type.
        with suppress(NoSuchStreamError, WrongKeyTypeError, GroupMissingError):
            found.append(describe_stream(server, key, alive_s=alive_s))
    return StreamList(tuple(found), complete)


def _find(server: RedisAdmin, pattern: str, limit: int, max_keys: int) -> tuple[list[bytes], bool]:
    keys: set[bytes] = set()
    seen = 0
    streams = PartitionedStreams(server)
    for master in server.masters():  # each node of a cluster has its own keys
        cursor = ""
        while cursor != "0":
            if seen >= max_keys or len(keys) > limit:
                return sorted(keys)[:limit], False
            words = ("SCAN", cursor or "0", "MATCH", pattern, "COUNT", _SCAN_COUNT, "TYPE", "stream")
            reply = server.call_each(master, *words)
            cursor, page = text(reply[0]), reply[1]
            seen += _SCAN_COUNT
            keys |= {streams.stream_of(key) for key in page if not is_companion(key)}
    return sorted(keys)[:limit], len(keys) <= limit


def describe_stream(server: RedisAdmin, key: str | bytes, *, alive_s: float = ALIVE_S) -> StreamReport:
    """Describe one stream in full, with all its partitions. A key may be bytes, because a name need not be UTF-8.

    Raises:
        NoSuchStreamError: The key does not exist.
        WrongKeyTypeError: The key holds another type.
    """
    keys = partition_keys(server, key)
    if len(keys) == 1:
        return describe_key(server, key, alive_s=alive_s)
    found = []
    for one in keys:
        with suppress(NoSuchStreamError):  # without a message and without a worker so far
            found.append(describe_key(server, one, alive_s=alive_s))
    if not found:
        server.require_stream(key)
    return join_reports(as_bytes(key), found, len(keys))


def describe_key(server: RedisAdmin, key: str | bytes, *, alive_s: float = ALIVE_S) -> StreamReport:
    """Describe the stream at one key, which may be one partition of several.

    Raises:
        NoSuchStreamError: The key does not exist.
        WrongKeyTypeError: The key holds another type.
    """
    server.require_stream(key)
    raw, name = as_bytes(key), display_name(key)
    now_ms = server.now_ms()
    info = as_mapping(server.call("XINFO", "STREAM", raw, stream=name))
    rows = [as_mapping(one) for one in server.call("XINFO", "GROUPS", raw, stream=name)]
    context = _Context(int(info[b"length"]), now_ms, alive_s, server_counts_attempts(server))
    memory, delayed, dead, paused = _related_keys(server, raw)
    first = info.get(b"first-entry")
    return StreamReport(
        key=name,
        length=context.length,
        first_id=text(first[0]) if first else None,
        last_id=text(info[b"last-generated-id"]),
        memory_bytes=memory,
        delayed=delayed,
        dead_letters=dead,
        paused=None if paused is None else tuple(sorted(map(display_name, paused))),
        groups=tuple(one for row in rows if (one := _group(server, raw, row, context)) is not None),
        raw_key=raw,
    )


def _related_keys(server: RedisAdmin, key: bytes) -> list[Any]:
    """Return memory use and the processor's keys; None for each that this user may not read or has another type."""
    commands = (
        pack("MEMORY", "USAGE", key, "SAMPLES", 5),
        pack("ZCARD", companion(key, b"delayed")),
        pack("XLEN", companion(key, b"dead")),
        pack("HKEYS", companion(key, b"paused")),
    )
    replies = server.send(b"".join(commands), len(commands), command="MEMORY", stream=display_name(key))
    return [None if isinstance(reply, ResponseError) else reply for reply in replies]


def _group(server: RedisAdmin, key: bytes, row: dict[bytes, Any], context: _Context) -> GroupReport | None:
    """Describe one group; None if it was destroyed during the call."""
    name, after = row[b"name"], text(row[b"last-delivered-id"])
    try:
        pending, waiting, known = server.pipeline(
            [
                ("XPENDING", key, name),
                ("XRANGE", key, f"({after}", "+", "COUNT", 1),
                ("XINFO", "CONSUMERS", key, name),
            ],
            stream=display_name(key),
            group=display_name(name),
        )
    except GroupMissingError:
        return None
    ids = [text(pending[1])] if pending[0] else []
    ids += [text(waiting[0][0])] if waiting else []
    oldest_ms = min((milliseconds_of(one) for one in ids), default=None)
    return GroupReport(
        name=display_name(name),
        lag=group_lag(row, length=context.length, waiting=bool(waiting)),
        pending=pending[0],
        last_delivered_id=after,
        oldest_age_s=None if oldest_ms is None else max(0.0, (context.now_ms - oldest_ms) / 1000),
        consumers=_consumers(server, key, name, consumer_infos(known), context),
        raw_name=name,
    )


def _consumers(
    server: RedisAdmin, key: bytes, group: bytes, known: list[ConsumerInfo], context: _Context
) -> tuple[ConsumerReport, ...]:
    found = []
    for one, (has_key, registered) in zip(known, read_liveness(server, key, group, known), strict=True):
        state = consumer_state(
            one.idle_ms / 1000,
            has_key=has_key,
            counts_attempts=context.counts_attempts,
            alive_s=context.alive_s,
            registered=registered,
        )
        found.append(ConsumerReport(display_name(one.name), one.pending, one.idle_ms / 1000, state))
    unlisted = read_unlisted(server, key, group, known)
    return (*found, *(ConsumerReport(display_name(name), 0, None, ConsumerState.IDLE) for name in unlisted))


def require_group(stream: StreamReport, group: str) -> GroupReport:
    """Return the group of that name, or raise ``NoSuchStreamError`` that lists the existing groups."""
    for one in stream.groups:
        if one.raw_name == as_bytes(group):
            return one
    there = ", ".join(printable(one.name) for one in stream.groups) or "none"
    raise NoSuchStreamError(
        f"stream {printable(stream.key)!r} has no consumer group {printable(group)!r}; there is: {there}",
        stream=stream.key,
    )
