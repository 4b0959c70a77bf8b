"""Decode the AMQP properties of a message one by one, on access, and encode them. Pure."""

from collections.abc import Collection, Mapping
from enum import Enum
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception, despite its name
from typing import Any, Final
from uuid import uuid4

from conquiet.rabbit.tables import cut_table, pack_short, pack_table, read_table, text_or_bytes

PERSISTENT: Final = 2
_MAX_EXPIRATION_MS: Final = 2**32 - 1

_flags_at = Struct(">H").unpack_from
_pack_flags = Struct(">H").pack
_length = Struct(">I").unpack_from
_pack_byte = Struct(">B").pack
_pack_time = Struct(">Q").pack

# The properties and their types, in the order of the protocol: the order of the flags from the highest bit down.
_SHORT, _TABLE, _BYTE, _TIME = range(4)
_KINDS: Final = {
    "content_type": _SHORT,
    "content_encoding": _SHORT,
    "headers": _TABLE,
    "delivery_mode": _BYTE,
    "priority": _BYTE,
    "correlation_id": _SHORT,
    "reply_to": _SHORT,
    "expiration": _SHORT,
    "message_id": _SHORT,
    "timestamp": _TIME,
    "type": _SHORT,
    "user_id": _SHORT,
    "app_id": _SHORT,
    "cluster_id": _SHORT,
}
_FIELDS: Final = tuple((name, 1 << (15 - place), kind) for place, (name, kind) in enumerate(_KINDS.items()))
_FLAGS: Final = {name: flag for name, flag, _ in _FIELDS}
_HAS_HEADERS: Final = _FLAGS["headers"]
_HAS_MESSAGE_ID: Final = _FLAGS["message_id"]

# The properties that a message keeps when it is sent again. With its expiration it would expire again, and the broker
# accepts a user id only from that user.
_KEPT: Final = tuple(name for name in _KINDS if name not in {"delivery_mode", "expiration", "user_id", "cluster_id"})


class UnencodableError(Exception):
    """AMQP cannot hold a property. The text names the property, never its value."""


class Properties:
    """The properties of a message, by pika's names. They are decoded on access, because most syncers use none.

    A property that cannot be decoded counts as missing. Any publisher may have written it, so it must neither end the
    connection nor hide the other properties.
    """

    __slots__ = ("_flags", "_headers", "_raw", "_spans")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._flags = int.from_bytes(raw[:2], "big")
        self._spans: dict[str, tuple[int, int]] | None = None
        self._headers: Any = None

    @property
    def headers(self) -> Any:
        """The table of headers; None without one."""
        if self._headers is None and self._flags & _HAS_HEADERS:
            table = self.part("headers")
            self._headers = None if table is None else read_table(table[4:])
        return self._headers

    @property
    def message_id(self) -> Any:
        """The property ``message_id``; bytes if it is not UTF-8."""
        return self._value("message_id") if self._flags & _HAS_MESSAGE_ID else None

    def part(self, name: str) -> bytes | None:
        """Return one property as encoded, with its length prefix if it has one; None if it is missing."""
        if self._spans is None:
            self._spans = _spans(self._raw)
        span = self._spans.get(name)
        return None if span is None else self._raw[slice(*span)]

    def __getattr__(self, name: str) -> Any:
        if name not in _KINDS:
            raise AttributeError(name)
        return self._value(name)

    def _value(self, name: str) -> Any:
        part = self.part(name)
        if part is None:
            return None
        return text_or_bytes(part[1:]) if _KINDS[name] == _SHORT else int.from_bytes(part, "big")


def _spans(raw: bytes) -> dict[str, tuple[int, int]]:
    """Return begin and end of each property, up to the first property that does not fit into the bytes."""
    spans: dict[str, tuple[int, int]] = {}
    at, size = 2, len(raw)
    flags = more = int.from_bytes(raw[:2], "big")
    while more & 1 and at + 2 <= size:  # skip further words of flags: the protocol defines none
        (more,) = _flags_at(raw, at)
        at += 2
    for name, flag, kind in _FIELDS:
        if not flags & flag:
            continue
        if kind == _SHORT:
            end = at + 1 + raw[at] if at < size else size + 1
        elif kind == _TABLE:
            end = at + 4 + _length(raw, at)[0] if at + 4 <= size else size + 1
        else:
            end = at + (1 if kind == _BYTE else 8)
        if end > size:
            break
        spans[name] = (at, end)
        at = end
    return spans


def encode_properties(properties: Mapping[str, Any]) -> bytes:
    """Return encoded properties, beginning with their flags. A property that is None is left out.

    Raises:
        UnencodableError: A property cannot be sent, or the broker would close the connection because of it.
    """
    if not _KINDS.keys() >= properties.keys():
        raise UnencodableError(f"one of its properties is unknown to AMQP, which knows {', '.join(_KINDS)}")
    parts: dict[str, bytes] = {}
    for name, value in properties.items():
        if value is not None:
            try:
                parts[name] = _pack(name, value)
            except (TypeError, ValueError, ArithmeticError, RecursionError, StructError):
                raise UnencodableError(f"its {name} has to be {_EXPECTED[name]}") from None
    return _join(parts)


def renewed_properties(
    properties: Properties, without_headers: Collection[str], new_headers: Mapping[str, Any] | None = None
) -> bytes:
    """Return the properties of a message that is sent again: unchanged bytes, except for some headers.

    New headers come first, so that they can be read even if a later part of the table cannot.

    The message is persistent, and gets an id if it has none.
    """
    parts = {name: part for name in _KEPT if (part := properties.part(name)) is not None}
    if "headers" in parts or new_headers:
        table = pack_table(new_headers or {})[4:] + cut_table(parts.get("headers", b"")[4:], without_headers)
        parts["headers"] = len(table).to_bytes(4, "big") + table
    parts["delivery_mode"] = _pack_byte(PERSISTENT)
    if len(parts.get("message_id", b"")) <= 1:
        parts["message_id"] = pack_short(uuid4().hex)
    return _join(parts)


def _join(parts: Mapping[str, bytes]) -> bytes:
    return _pack_flags(sum(_FLAGS[name] for name in parts)) + b"".join(parts[name] for name in _KINDS if name in parts)


def _pack(name: str, value: Any) -> bytes:
    kind = _KINDS[name]
    if kind == _TABLE:
        return pack_table(value)
    if kind == _BYTE:
        return _pack_byte(value.value if isinstance(value, Enum) else value)  # pika has an Enum for the delivery mode
    if kind == _TIME:
        return _pack_time(value)
    packed = pack_short(value)
    # The broker closes the channel because of an invalid expiration, and unconfirmed messages of other callers fail.
    if name == "expiration" and not (packed[1:].isdigit() and int(packed[1:]) <= _MAX_EXPIRATION_MS):
        raise ValueError
    return packed


_HOLDS: Final = {
    _SHORT: "a text of at most 255 bytes",
    _TABLE: "a table of texts, bytes, integers of 64 bits, finite floats, decimals, times, and lists or tables of them",
    _BYTE: "an integer from 0 to 255",
    _TIME: "an integer, the seconds since 1970",
}
_EXPECTED: Final = {name: _HOLDS[kind] for name, kind in _KINDS.items()} | {
    "expiration": "a text, the number of milliseconds",
}
