"""What is there: streams, their groups and consumers. SCAN and XINFO with limits, never KEYS."""

from conquiet.errors import QueueError
from conquiet.management.models import ConsumerFacts, GroupFacts, StreamFacts, StreamList
from conquiet.management.server import Server
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
    """
    keys, complete = _find(server, pattern, limit, max_keys)
    found = []
    for key in keys:
        try:
            found.append(describe_stream(server, key, alive_ms=alive_ms))
        except QueueError as error:
            if error.in_doubt or error.__cause__ is None:
                raise
            # Deleted between SCAN and XINFO.
    return StreamList(tuple(found), complete)


def _find(server: Server, pattern: str, limit: int, max_keys: int) -> tuple[list[str], bool]:
    cursor, seen, keys = "0", 0, set()
    while True:
        reply = server.call("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT, "TYPE", "stream")
        cursor, page = text(reply[0]), reply[1]
        seen += _SCAN_COUNT
        keys |= {name for name in map(_name, page) if not _is_companion(name)}
        if cursor == "0":
            return sorted(keys)[:limit], len(keys) <= limit
        if seen >= max_keys or len(keys) > limit:
            return sorted(keys)[:limit], False


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _is_companion(key: str) -> bool:
    """Whether the key is what the processor keeps beside a stream: shown with that stream, not by itself."""
    return "}" in key and key.endswith((":dead", ":wake"))


def describe_stream(server: Server, key: str, *, alive_ms: int = ALIVE_MS) -> StreamFacts:
    """Describe one stream in full.

    Raises:
        NoSuchStreamError: There is none.
        WrongKeyTypeError: The key holds something else.
    """
    server.require_stream(key)
    now_ms = server.now_ms()
    info = server.mapping("XINFO", "STREAM", key, stream=key)
    rows = [as_mapping(raw) for raw in server.call("XINFO", "GROUPS", key, stream=key)]
    memory, delayed, dead, paused = server.pipeline(
        [
            ("MEMORY", "USAGE", key, "SAMPLES", 5),
            ("ZCARD", companion(key, "delayed")),
            ("XLEN", companion(key, "dead")),
            ("HKEYS", companion(key, "paused")),
        ],
        stream=key,
    )
    first = info.get("first-entry")
    return StreamFacts(
        key=key,
        length=int(info["length"]),
        first_id=text(first[0]) if first else None,
        last_id=text(info["last-generated-id"]),
        memory_bytes=memory,
        delayed=delayed,
        dead_letters=dead,
        paused=tuple(sorted(map(text, paused))),
        groups=tuple(_group(server, key, row, now_ms, alive_ms) for row in rows),
    )


def companion(stream: str, what: str) -> str:
    """Return the key of what the processor keeps beside a stream, in the stream's own slot."""
    opened = stream.find("{")
    has_tag = opened >= 0 and stream.find("}", opened + 1) > opened + 1
    return f"{stream}:{what}" if has_tag else f"{{{stream}}}:{what}"


def _group(server: Server, key: str, row: dict[bytes, object], now_ms: int, alive_ms: int) -> GroupFacts:
    name = text(row[b"name"])  # type: ignore[arg-type]
    after = text(row[b"last-delivered-id"])  # type: ignore[arg-type]
    pending, waiting, known = server.pipeline(
        [
            ("XPENDING", key, name),
            ("XRANGE", key, f"({after}", "+", "COUNT", 1),
            ("XINFO", "CONSUMERS", key, name),
        ],
        stream=key,
        group=name,
    )
    ids = [text(pending[1])] if pending[0] else []
    ids += [text(waiting[0][0])] if waiting else []
    oldest_ms = min((id_key(one)[0] for one in ids), default=None)
    # The server loses count when entries in the middle are deleted. Nothing waiting is nothing waiting all the same.
    lag = row.get(b"lag") if waiting else 0
    return GroupFacts(
        name=name,
        lag=lag,  # type: ignore[arg-type]
        pending=pending[0],
        last_delivered_id=after,
        oldest_age_s=None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
        consumers=tuple(
            ConsumerFacts(_name(one.name), one.pending, one.idle_ms, alive=one.idle_ms < alive_ms)
            for one in standings(known)
        ),
    )


def require_group(stream: StreamFacts, group: str) -> GroupFacts:
    """Return the group of that name, or raise ``NoSuchStreamError`` naming those there are."""
    from conquiet.errors import NoSuchStreamError
    from conquiet.kernel.redaction import printable

    for one in stream.groups:
        if one.name == group:
            return one
    there = ", ".join(printable(one.name) for one in stream.groups) or "none"
    raise NoSuchStreamError(
        f"stream {printable(stream.key)!r} has no consumer group {printable(group)!r}; there is: {there}",
        stream=stream.key,
    )
