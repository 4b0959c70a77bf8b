"""Parse RESP2 replies of stream commands, over all supported server versions. Pure.

    XREADGROUP   nil                                    nothing
                 [[key, [[id, [name, value, …]], …]]]
    XCLAIM       [[id, fields], nil, …]                 nil: deleted (Redis 6.2; later versions leave it out)
    XAUTOCLAIM   [cursor, entries]                      Redis 6.2
                 [cursor, entries, deleted ids]         Redis 7.0 and later

Ids become text; names and values stay bytes. Fields are None for an entry that was deleted from the stream while it was
pending.
"""

from typing import Any, Final, NamedTuple

from conquiet.core.versions import release_of

Fields = list[bytes]

COUNTS_ATTEMPTS_SINCE: Final = (7, 2)


class StreamEntry(NamedTuple):
    """One entry of a reply. ``fields`` is None if the entry was deleted."""

    id: str
    fields: Fields | None


class Pending(NamedTuple):
    """One row of XPENDING."""

    id: str
    consumer: bytes
    idle_ms: int
    deliveries: int


class ConsumerInfo(NamedTuple):
    """One row of XINFO CONSUMERS.

    ``idle_ms`` is the time since the consumer last sent a command for the group. Redis 7.2 added ``inactive``, the time
    since it last got an entry; it is not used.
    """

    name: bytes
    pending: int
    idle_ms: int


def text(value: bytes | str) -> str:
    """Return an id or a name as text."""
    return value.decode() if isinstance(value, bytes) else value


def entries(raw: Any) -> list[StreamEntry]:
    """Return the entries of a list such as XCLAIM's; nil elements are left out."""
    return [entry(item) for item in raw or () if item is not None]


def entry(item: Any) -> StreamEntry:
    """Return one ``[id, fields]``."""
    entry_id, fields = item
    return StreamEntry(text(entry_id), fields or None)


def read_entries(raw: Any) -> list[StreamEntry]:
    """Return the entries of an XREADGROUP reply for one stream."""
    return entries(raw[0][1]) if raw else []


def pending_rows(raw: Any) -> list[Pending]:
    """Return the rows of an XPENDING range."""
    return [Pending(text(row[0]), row[1], row[2], row[3]) for row in raw or ()]


def pending_of(raw: Any, consumer: str) -> int:
    """Return the number of pending entries of a consumer from the summary of XPENDING."""
    own = consumer.encode()  # names of other programs need not be UTF-8
    return sum(int(count) for name, count in raw[3] or () if name == own)


def consumer_infos(raw: Any) -> list[ConsumerInfo]:
    """Return the rows of XINFO CONSUMERS."""
    rows = map(as_mapping, raw or ())
    return [ConsumerInfo(row[b"name"], row[b"pending"], row[b"idle"]) for row in rows]


def counts_attempts(version: str) -> bool:
    """Return whether ``idle`` of XINFO CONSUMERS counts from the last attempted read. Valkey reports 7.2 or more."""
    return release_of(version) >= COUNTS_ATTEMPTS_SINCE


def group_row(raw: Any, group: str) -> dict[bytes, Any] | None:
    """Return the row of one group from XINFO GROUPS; None if there is no such group."""
    name = group.encode()
    return next((row for row in map(as_mapping, raw or ()) if row[b"name"] == name), None)


def group_lag(row: dict[bytes, Any], *, length: int | None = None, waiting: bool = True) -> int | None:
    """Return the server's lag of a group, corrected where it is provably wrong; None if the server does not know.

    The server loses count when entries in the middle are deleted, and still counts undelivered entries that were
    trimmed. But without an entry after the last delivered one the lag is 0, and it is never above the length.

    Args:
        row: Of XINFO GROUPS.
        length: Number of entries in the stream, if known.
        waiting: False if it is known that no entry follows the last delivered one.
    """
    if not waiting:
        return 0
    lag: int | None = row.get(b"lag")
    return lag if lag is None or length is None else min(lag, length)


def as_mapping(raw: Any) -> dict[bytes, Any]:
    """Return names and values as a dict. RESP3, which a caller's client may use, sends a map."""
    return raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2], strict=True))


def streams_read(raw: Any) -> list[tuple[bytes, Any]]:
    """Return the streams of an XREAD reply with their entries. RESP3 sends a map."""
    return list(raw.items()) if isinstance(raw, dict) else [(name, found) for name, found in raw or ()]


def scored(raw: Any) -> list[tuple[bytes, bytes]]:
    """Return members and scores of a sorted set. RESP3 sends pairs with numbers."""
    if raw and isinstance(raw[0], list):
        return [(member, b"%.17g" % score) for member, score in raw]
    return list(zip(raw[::2], raw[1::2], strict=True))


def info_fields(raw: Any) -> dict[str, str]:
    """Return the fields of an INFO reply."""
    lines = raw.decode(errors="replace").splitlines()  # its paths need not be UTF-8
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def server_ms(raw: Any) -> int:
    """Return the server's clock in milliseconds from a reply to TIME."""
    seconds, microseconds = raw
    return int(seconds) * 1000 + int(microseconds) // 1000
