"""Payload to bytes and back, strictly. Pure: knows JSON and the entry format, no client and no server.

    XADD <stream> * data <json>          SPEC(001 §3): one field, named data, a UTF-8 JSON object

What is refused, and never silently mended: another field, bytes that are not UTF-8, NaN and the
infinities, numbers that no float can hold, lone surrogates, keys that are not strings, anything
that is not JSON, more bytes than allowed. A reason is one of the constants below, so that no part
of a payload can get into an error.

msgspec parses and writes: on these edges it refuses what the standard library lets through (NaN,
1e999, lone surrogates, UTF-16), and it is several times as fast. What it would let through on the
way in (NaN as null, integer keys as strings, bytes as base64) is looked for before it is called.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

FIELD = b"data"
MAX_DEPTH = 100
"""Deepest nesting that is written. Readers accept more, up to what their stack holds."""

NOT_ONE_FIELD = "it does not have exactly one field"
WRONG_FIELD = "its field is not named data"
TOO_LARGE = "it is larger than max_payload_bytes"
NOT_UTF8 = "it is not UTF-8"
NOT_JSON = "it is not JSON"
NOT_AN_OBJECT = "it is not a JSON object"
OUT_OF_RANGE = "it holds a number that is out of range"
TOO_DEEP = "it is nested too deeply"
NOT_FINITE = "it holds NaN or an infinity"
KEY_NOT_TEXT = "it has a key that is not a string"
NOT_JSON_TYPE = "it holds a value that is not a JSON type (str, int, float, bool, None, list, dict)"
LONE_SURROGATE = "it holds text that cannot be UTF-8"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_LEAVES = frozenset({str, int, bool, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})


class CodecError(ValueError):
    """A payload or an entry was refused. ``reason`` is one of this module's constants, never content."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def decode_fields(fields: Sequence[bytes] | Mapping[bytes, bytes], *, max_bytes: int) -> dict[str, Any]:
    """Return the payload of an entry, given its fields as the server sent them (flat, or as a mapping).

    Raises:
        CodecError: The entry breaks the format.
    """
    if type(fields) is not list and isinstance(fields, Mapping):  # the first test is the cheap one
        fields = [part for pair in fields.items() for part in pair]
    if len(fields) != 2:  # noqa: PLR2004 - one name, one value
        raise CodecError(NOT_ONE_FIELD)
    if fields[0] != FIELD:
        raise CodecError(WRONG_FIELD)
    return decode_payload(fields[1], max_bytes=max_bytes)


def decode_payload(data: bytes, *, max_bytes: int) -> dict[str, Any]:
    """Return the object that ``data`` encodes.

    Raises:
        CodecError: It is too large, not UTF-8, not JSON or not an object.
    """
    if len(data) > max_bytes:
        raise CodecError(TOO_LARGE)
    try:
        payload = _decode(data)
    except UnicodeDecodeError:
        reason = NOT_UTF8
    except msgspec.ValidationError:  # the only thing an untyped decoder validates is the range of numbers
        reason = OUT_OF_RANGE
    except msgspec.DecodeError:
        reason = NOT_JSON
    except RecursionError:
        reason = TOO_DEEP
    else:
        if type(payload) is dict:
            return payload
        reason = NOT_AN_OBJECT
    # Raised out here so that the parser's error is not its context: UnicodeDecodeError carries the whole payload.
    raise CodecError(reason)


def encode_payload(payload: Mapping[str, Any], *, max_bytes: int) -> bytes:
    """Return ``payload`` as UTF-8 JSON, such that ``decode_payload`` gives it back (tuples as lists).

    Raises:
        CodecError: It is not an object, holds what JSON cannot say, or is too large.
    """
    if not isinstance(payload, dict):
        raise CodecError(NOT_AN_OBJECT)
    plain = _check(payload)
    reason = None
    try:
        data = _encode(payload) if plain else _encode_subclasses(payload)
    except UnicodeEncodeError:
        reason = LONE_SURROGATE
    except ValueError:  # an int of more digits than Python converts (sys.get_int_max_str_digits)
        reason = OUT_OF_RANGE
    if reason is not None:
        raise CodecError(reason)  # out here for the reason given above
    if len(data) > max_bytes:
        raise CodecError(TOO_LARGE)
    return data


def canonical(payload: Mapping[str, Any]) -> bytes:
    """Return bytes that are equal for payloads that are equal, whatever the order of their keys."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()


def _encode_subclasses(payload: Mapping[str, Any]) -> bytes:
    # Enums, defaultdicts, numpy floats: the standard library writes them as what they derive from.
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _check(payload: dict[str, Any]) -> bool:
    """Refuse what JSON cannot say. True if every value is of a plain built-in type.

    Level by level and not by recursion: a payload must not be able to exhaust the stack, and one
    that contains itself is simply too deep.
    """
    plain = type(payload) is dict
    level: list[Any] = [payload]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                plain &= _check_keys(container)
                plain &= _check_values(container.values(), below)
            else:
                plain &= _check_values(container, below)
        if not below:
            return plain
        level = below
    raise CodecError(TOO_DEEP)


def _check_keys(keys: Iterable[Any]) -> bool:
    plain = True
    for key in keys:
        if type(key) is not str:
            if not isinstance(key, str):
                raise CodecError(KEY_NOT_TEXT)
            plain = False
    return plain


def _check_values(values: Iterable[Any], below: list[Any]) -> bool:
    """Check what can be checked here; put the containers among the values into ``below``."""
    plain = True
    for value in values:
        kind = type(value)
        if kind in _LEAVES:
            continue
        if kind in _CONTAINERS:
            below.append(value)
        elif isinstance(value, float):
            plain &= kind is float
            if not math.isfinite(value):
                raise CodecError(NOT_FINITE)
        elif isinstance(value, dict | list | tuple):
            plain = False
            below.append(value)
        elif isinstance(value, str | int):
            plain = False
        else:
            raise CodecError(NOT_JSON_TYPE)
    return plain
