"""What is there: streams, their groups and consumers. SCAN and XINFO with limits, never KEYS."""

from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from conquiet.errors import GroupMissingError, NoSuchStreamError, WrongKeyTypeError
from conquiet.kernel.redaction import printable
from conquiet.management.models import ConsumerFacts, GroupFacts, StreamFacts, StreamList
from conquiet.management.server import Server, as_bytes, shown
from conquiet.queue.commands import pack
from conquiet.queue.recovery import id_key
from conquiet.queue.replies import as_mapping, standings, text

ALIVE_MS = 60_000
"""A consumer that has asked for nothing for so long counts as dead. Live ones ask every few seconds."""

_SCAN_COUNT = 1_000


def list_streams(
    server: Server, *, pattern: str = "*", limit: int = 100, max_keys: int = 100_000, alive_ms: int = ALIVE_MS
) -> StreamList:
    """Describe the streams whose key matches ``pattern``, those of the processor's own kind left out.

    Args:
        server: Where to look.
        pattern: As SCAN understands it.
        limit: Most streams described.
        max_keys: Most keys looked at: on a server with millions of other keys the answer is incomplete, and
            says so.
        alive_ms: See ``ALIVE_MS``.

    Raises:
        QueueError: The server refused a question, or did not answer. What could not be asked is not "no stream".
    """
    keys, complete = _find(server, pattern, limit, max_keys)
    found = []
    for key in keys:
        # No stream any more: deleted since SCAN saw it, or replaced by something else.
        with suppress(NoSuchStreamError, WrongKeyTypeError, GroupMissingError):
            found.append(describe_stream(server, key, alive_ms=alive_ms))
    return StreamList(tuple(found), complete)


def _find(server: Server, pattern: str, limit: int, max_keys: int) -> tuple[list[bytes], bool]:
    cursor, seen = "0", 0
    keys: set[bytes] = set()
    while True:
        reply = server.call("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, "TYPE", "stream")
        cursor, page = text(reply[0]), reply[1]
        seen += _SCAN_COUNT
        keys |= {key for key in page if not _is_companion(key)}
        if cursor == "0":
            return sorted(keys)[:limit], len(keys) <= limit
        if seen >= max_keys or len(keys) > limit:
            return sorted(keys)[:limit], False


def _is_companion(key: bytes) -> bool:
    """Whether the key is what the processor keeps beside a stream: shown with that stream, not by itself."""
    return b"}" in key and key.endswith((b":dead", b":wake"))


def describe_stream(server: Server, key: str | bytes, *, alive_ms: int = ALIVE_MS) -> StreamFacts:
    """Describe one stream in full. A key may be bytes: not every name in a Redis is UTF-8.

    Raises:
        NoSuchStreamError: There is none.
        WrongKeyTypeError: The key holds something else.
    """
    server.require_stream(key)
    raw, name = as_bytes(key), shown(key)
    now_ms = server.now_ms()
    info = server.mapping("XINFO", "STREAM", raw, stream=name)
    rows = [as_mapping(one) for one in server.call("XINFO", "GROUPS", raw, stream=name)]
    memory, delayed, dead, paused = _beside(server, raw)
    first = info.get("first-entry")
    return StreamFacts(
        key=name,
        length=int(info["length"]),
        first_id=text(first[0]) if first else None,
        last_id=text(info["last-generated-id"]),
        memory_bytes=memory,
        delayed=delayed,
        dead_letters=dead,
        paused=None if paused is None else tuple(sorted(map(shown, paused))),
        groups=tuple(one for row in rows if (one := _group(server, raw, row, now_ms, alive_ms)) is not None),
        raw_key=raw,
    )


def _beside(server: Server, key: bytes) -> list[Any]:
    """Ask what is worth knowing besides. None for what this user may not ask, or what is not the processor's."""
    questions = (
        pack("MEMORY", "USAGE", key, "SAMPLES", 5),
        pack("ZCARD", companion(key, b"delayed")),
        pack("XLEN", companion(key, b"dead")),
        pack("HKEYS", companion(key, b"paused")),
    )
    replies = server.send(b"".join(questions), len(questions), command="MEMORY", stream=shown(key))
    return [None if isinstance(reply, ResponseError) else reply for reply in replies]


def companion(stream: bytes, what: bytes) -> bytes:
    """Return the key of what the processor keeps beside a stream, in the stream's own slot."""
    opened = stream.find(b"{")
    has_tag = opened >= 0 and stream.find(b"}", opened + 1) > opened + 1
    return b"%b:%b" % (stream, what) if has_tag else b"{%b}:%b" % (stream, what)


def _group(server: Server, key: bytes, row: dict[bytes, Any], now_ms: int, alive_ms: int) -> GroupFacts | None:
    """Describe one group; None if it was destroyed since it was named."""
    name, after = row[b"name"], text(row[b"last-delivered-id"])
    try:
        pending, waiting, known = server.pipeline(
            [
                ("XPENDING", key, name),
                ("XRANGE", key, f"({after}", "+", "COUNT", 1),
                ("XINFO", "CONSUMERS", key, name),
            ],
            stream=shown(key),
            group=shown(name),
        )
    except GroupMissingError:
        return None
    ids = [text(pending[1])] if pending[0] else []
    ids += [text(waiting[0][0])] if waiting else []
    oldest_ms = min((id_key(one)[0] for one in ids), default=None)
    return GroupFacts(
        name=shown(name),
        # The server loses count when entries in the middle are deleted. Nothing waiting is 0 all the same.
        lag=row.get(b"lag") if waiting else 0,
        pending=pending[0],
        last_delivered_id=after,
        oldest_age_s=None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
        consumers=tuple(
            ConsumerFacts(shown(one.name), one.pending, one.idle_ms, alive=one.idle_ms < alive_ms)
            for one in standings(known)
        ),
        raw_name=name,
    )


def require_group(stream: StreamFacts, group: str) -> GroupFacts:
    """Return the group of that name, or raise ``NoSuchStreamError`` naming those there are."""
    for one in stream.groups:
        if one.raw_name == as_bytes(group):
            return one
    there = ", ".join(printable(one.name) for one in stream.groups) or "none"
    raise NoSuchStreamError(
        f"stream {printable(stream.key)!r} has no consumer group {printable(group)!r}; there is: {there}",
        stream=stream.key,
    )
