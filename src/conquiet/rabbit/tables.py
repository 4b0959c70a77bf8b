"""Decode and encode AMQP field tables. Pure.

The client library discards a whole table because of one value that it cannot decode (a timestamp in milliseconds, an
infinite double). It also truncates floats to integers and cannot encode floats. Any publisher may write headers, and
retries depend on them. Here a value that cannot be decoded becomes None, and all other values stay.

    table ::= { short string (name), value }        value ::= type code, then
        t b B u U s I i l L f d T D V      a fixed number of bytes
        S x A F                            the length in four bytes, then the content

See docs/decisions/0020.
"""

import math
from calendar import timegm
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from typing import Any, Final

_MAX_DEPTH: Final = 32
_SHORT: Final = 255

_NUMBERS: Final = {
    ord(code_byte): (Struct(code).size, Struct(code).unpack_from)
    for code_byte, code in {
        "t": ">?", "b": ">b", "B": ">B", "U": ">h", "u": ">H", "s": ">h", "I": ">i", "i": ">I",
        "L": ">q", "l": ">q", "f": ">f", "d": ">d",
    }.items()
}  # fmt: skip
_TEXT, _BYTES, _ARRAY, _TABLE, _TIME, _DECIMAL, _VOID = b"SxAFTDV"
_SIZES: Final = {code_byte: size for code_byte, (size, _) in _NUMBERS.items()} | {_TIME: 8, _DECIMAL: 5, _VOID: 0}
_COUNTED: Final = frozenset((_TEXT, _BYTES, _ARRAY, _TABLE))

_length = Struct(">I").unpack_from
_seconds = Struct(">Q").unpack_from
_scaled = Struct(">Bi").unpack_from
_pack_length = Struct(">I").pack
_pack_int = Struct(">ci").pack
_pack_long = Struct(">cq").pack
_pack_double = Struct(">cd").pack
_pack_decimal = Struct(">cBi").pack
_pack_time = Struct(">cQ").pack


class _UnreadableError(Exception):
    """The start of the next value is unknown."""


# ------------------------------------------------------------------ reading
def text_or_bytes(raw: bytes) -> str | bytes:
    """Return the text, or the bytes unchanged if they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def read_table(raw: bytes) -> dict[str | bytes, Any]:
    """Decode a table without its length prefix. No bytes cause an exception.

    A value that cannot be decoded is None. If its length is unknown, the table ends before it.
    """
    return _read_table(raw, 0, len(raw), 0)


def cut_table(raw: bytes, names: Collection[str]) -> bytes:
    """Return an encoded table without some of its fields. The bytes of all others are unchanged. Never raises."""
    kept, at, end = [], 0, len(raw)
    unwanted = {name.encode() for name in names}
    try:
        while at < end:
            named = at + 1 + raw[at]
            _, after = _span(raw, named, end)
            if raw[at + 1 : named] not in unwanted:
                kept.append(raw[at:after])
            at = after
    except _UnreadableError:
        kept.append(raw[at:])
    return b"".join(kept)


def _span(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return begin and end of the content of the value at this position."""
    if at >= end:
        raise _UnreadableError
    start, size = at + 1, _SIZES.get(raw[at])
    if size is None:
        if raw[at] not in _COUNTED or start + 4 > end:
            raise _UnreadableError
        (size,) = _length(raw, start)
        start += 4
    if start + size > end:
        raise _UnreadableError
    return start, start + size


def _read_table(raw: bytes, at: int, end: int, depth: int) -> dict[str | bytes, Any]:
    table: dict[str | bytes, Any] = {}
    try:
        while at < end:
            named = at + 1 + raw[at]
            start, after = _span(raw, named, end)
            table[text_or_bytes(raw[at + 1 : named])] = _read_value(raw, named, start, after, depth)
            at = after
    except _UnreadableError:
        pass
    return table


def _read_array(raw: bytes, at: int, end: int, depth: int) -> list[Any]:
    array: list[Any] = []
    try:
        while at < end:
            start, after = _span(raw, at, end)
            array.append(_read_value(raw, at, start, after, depth))
            at = after
    except _UnreadableError:
        pass
    return array


def _read_value(raw: bytes, at: int, start: int, end: int, depth: int) -> Any:  # noqa: PLR0911 - one for each type
    kind = raw[at]
    if kind == _TEXT:
        return text_or_bytes(raw[start:end])
    if (number := _NUMBERS.get(kind)) is not None:
        return number[1](raw, start)[0]
    if kind == _BYTES:
        return raw[start:end]
    if kind in (_ARRAY, _TABLE):
        if depth == _MAX_DEPTH:
            return None
        return (_read_array if kind == _ARRAY else _read_table)(raw, start, end, depth + 1)
    if kind == _TIME:
        return _read_time(_seconds(raw, start)[0])
    if kind == _DECIMAL:
        decimals, digits = _scaled(raw, start)
        return Decimal(digits) * Decimal(10) ** -decimals
    return None


def _read_time(seconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # milliseconds, most likely
        return None


# ------------------------------------------------------------------ writing
def pack_short(value: object) -> bytes:
    """Return a short string with its length prefix.

    Raises:
        TypeError: The value is neither text nor bytes.
        ValueError: It is longer than 255 bytes, or a text that cannot be encoded.
    """
    if not isinstance(value, str | bytes):
        raise TypeError
    raw = value.encode() if isinstance(value, str) else value
    if len(raw) > _SHORT:
        raise ValueError
    return bytes((len(raw),)) + raw


def pack_table(table: object) -> bytes:
    """Return an encoded table with its length prefix.

    Raises:
        Exception: TypeError, ValueError, ArithmeticError, RecursionError or struct.error: AMQP cannot hold a value.
    """
    if not isinstance(table, Mapping):
        raise TypeError
    content = b"".join(pack_short(name) + _pack_value(value) for name, value in table.items())
    return _pack_length(len(content)) + content


def _pack_value(value: Any) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, str):
        return _counted(b"S", value.encode())
    if isinstance(value, bytes):
        return _counted(b"x", value)
    if isinstance(value, list | tuple):
        return _counted(b"A", b"".join(map(_pack_value, value)))
    if isinstance(value, Mapping):
        return b"F" + pack_table(value)
    return _pack_number(value)


def _pack_number(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return _pack_int(b"I", value) if -(2**31) <= value < 2**31 else _pack_long(b"l", value)
    if isinstance(value, float):
        if not math.isfinite(value):  # the broker cannot decode it, and closes the sender's connection
            raise ValueError
        return _pack_double(b"d", value)
    if isinstance(value, datetime):
        return _pack_time(b"T", timegm(value.utctimetuple()))
    if isinstance(value, Decimal):
        return _pack_scaled(value.normalize())
    raise TypeError


def _pack_scaled(value: Decimal) -> bytes:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError  # noqa: TRY004 - infinite, or not a number
    decimals = max(0, -exponent)
    return _pack_decimal(b"D", decimals, int(value.scaleb(decimals)))


def _counted(code_byte: bytes, content: bytes) -> bytes:
    return code_byte + _pack_length(len(content)) + content
