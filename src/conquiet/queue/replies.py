"""Replies of stream commands in one shape, whichever protocol or server version they came by. Pure.

    XREADGROUP   None, [] or {}                         nothing
                 [[key, [[id, [name, value, …]], …]]]   RESP2
                 {key: [[id, [name, value, …]], …]}     RESP3
    XCLAIM       [[id, fields], nil, …]                 nil: deleted (Redis 6.2; later ones leave it out)
    XAUTOCLAIM   [cursor, entries]                      Redis 6.2
                 [cursor, entries, deleted ids]         Redis 7.0 and later

Ids are text here; names and values stay bytes. Fields are None for an entry that was deleted from
the stream while it was pending.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

Fields = list[bytes]


class Entry(NamedTuple):
    """One entry of a reply. ``fields`` is None if there is nothing left of it."""

    id: str
    fields: Fields | None


class Pending(NamedTuple):
    """One row of XPENDING."""

    id: str
    consumer: bytes
    idle_ms: int
    deliveries: int


class Standing(NamedTuple):
    """One row of XINFO CONSUMERS.

    ``idle_ms`` is the time since the consumer last asked for anything. From Redis 7.2 on there is
    also ``inactive``, since it last got something; it is not used.
    """

    name: bytes
    pending: int
    idle_ms: int


def text(value: bytes | str) -> str:
    """Return an id or a name as text."""
    return value.decode() if isinstance(value, bytes) else value


def entries(raw: Any) -> list[Entry]:
    """Return the entries of a list such as XCLAIM's; nil elements are left out."""
    return [entry(item) for item in raw or () if item is not None]


def entry(item: Any) -> Entry:
    """Return one ``[id, fields]``."""
    message_id, fields = item
    if isinstance(fields, Mapping):
        fields = [part for pair in fields.items() for part in pair]
    # redis-py's own callbacks turn nil fields into {}: an entry without any field cannot exist in a stream.
    return Entry(text(message_id), fields or None)


def read_entries(raw: Any) -> list[Entry]:
    """Return the entries of an XREADGROUP reply for one stream."""
    if not raw:
        return []
    by_stream = list(raw.items()) if isinstance(raw, Mapping) else raw
    return entries(by_stream[0][1])


def read_entries_by_stream(raw: Any) -> dict[bytes, list[Entry]]:
    """Return the entries of an XREADGROUP reply for several streams."""
    if not raw:
        return {}
    by_stream = raw.items() if isinstance(raw, Mapping) else raw
    return {key.encode() if isinstance(key, str) else key: entries(found) for key, found in by_stream}


def autoclaimed(raw: Any) -> tuple[str, list[Entry], list[str]]:
    """Return cursor, entries and deleted ids of an XAUTOCLAIM reply."""
    deleted = raw[2] if len(raw) > 2 else ()  # noqa: PLR2004 - Redis 6.2 has no third element
    return text(raw[0]), entries(raw[1]), [text(item) for item in deleted]


def pending_rows(raw: Any) -> list[Pending]:
    """Return the rows of an XPENDING range."""
    return [Pending(text(row[0]), row[1], row[2], row[3]) for row in raw or ()]


def standings(raw: Any) -> list[Standing]:
    """Return the rows of XINFO CONSUMERS."""
    rows = map(as_mapping, raw or ())
    return [Standing(row[b"name"], row[b"pending"], row[b"idle"]) for row in rows]


def as_mapping(raw: Any) -> dict[bytes, Any]:
    """Return a flat list of names and values (RESP2) or a map (RESP3) as a dict."""
    if isinstance(raw, Mapping):
        return dict(raw)
    return dict(zip(raw[::2], raw[1::2], strict=True))
