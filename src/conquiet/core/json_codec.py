"""The strict JSON codec of all packages: payloads to UTF-8 bytes and back. Pure.

It rejects, and never repairs: bytes that are not UTF-8, NaN and the infinities, numbers outside the range of floats,
lone surrogates, keys that are not strings, types that JSON does not have, more bytes than allowed. Tuples are written
as lists. A reason is one of the constants below, so that an error never contains a value of the payload; the path of
the error holds the keys that lead to the value.

msgspec reads and writes: it rejects inputs that the standard library accepts (NaN, 1e999, lone surrogates, UTF-16), and
is several times as fast. Values that it would write (NaN as null, integer keys as strings, bytes as base64) are
checked before. It is a base dependency: one codec for every broker and for the outbox was preferred to a
smaller install. Three codecs had three rules: tuples in the queue, none in the outbox, integer keys in the publisher.

See docs/decisions/0009.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from conquiet.core.payload_path import find_path
from conquiet.errors import PayloadError

MAX_DEPTH = 100
"""Maximum nesting depth when writing. Readers accept more, up to their stack limit."""

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
    """A payload was rejected.

    Attributes:
        reason: One of this module's constants, never content.
        path: Keys and indexes that lead to the rejected value, such as ``order.items[3]``; may be empty. It never
            holds the value.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    @property
    def explanation(self) -> str:
        """The reason with the path."""
        return f"{self.reason}, at {self.path}" if self.path else self.reason

    def as_payload_error(self, subject: str, *, stream: str, command: str) -> PayloadError:
        """Return the public error. Raise it outside of ``except``: the context of this one may hold the payload."""
        text = f"{subject} was refused: {self.explanation}"
        return PayloadError(text, stream=stream, command=command, reason=self.reason, path=self.path)


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
    except msgspec.ValidationError:  # an untyped decoder validates only the range of numbers
        reason = OUT_OF_RANGE
    except msgspec.DecodeError:
        reason = NOT_JSON
    except RecursionError:
        reason = TOO_DEEP
    else:
        if type(payload) is dict:
            return payload
        reason = NOT_AN_OBJECT
    # Raised outside the except block, so that the parser's error is not its context: UnicodeDecodeError holds the
    # whole payload.
    raise CodecError(reason)


def encode_payload(payload: Mapping[str, Any], *, max_bytes: int) -> bytes:
    """Return a JSON object as UTF-8. ``decode_payload`` returns an equal object, with lists for tuples.

    Raises:
        CodecError: It is not an object, holds a value that JSON does not have, or is too large.
    """
    if not isinstance(payload, dict):
        raise CodecError(NOT_AN_OBJECT)
    try:
        return _encode_checked(payload, _check([payload]) and type(payload) is dict, max_bytes)
    except CodecError as error:
        reason = error.reason
    raise CodecError(reason, _path(payload, reason))


def encode_json(value: Any, *, max_bytes: int = sys.maxsize) -> bytes:
    """Return any JSON value as UTF-8.

    Raises:
        CodecError: It holds a value that JSON does not have, or is too large.
    """
    containers: list[Any] = []
    try:
        plain = _check_values((value,), containers)
        return _encode_checked(value, _check(containers) and plain, max_bytes)
    except CodecError as error:
        reason = error.reason
    raise CodecError(reason, _path(value, reason))


def _encode_checked(value: Any, plain: bool, max_bytes: int) -> bytes:  # noqa: FBT001 - private, on the hot path
    reason = None
    try:
        data = _encode(value) if plain else _encode_subclasses(value)
    except UnicodeEncodeError:
        reason = LONE_SURROGATE
    except ValueError:  # an int with more digits than Python converts (sys.get_int_max_str_digits)
        reason = OUT_OF_RANGE
    if reason is not None:
        raise CodecError(reason)  # outside the except block, as above
    if len(data) > max_bytes:
        raise CodecError(TOO_LARGE)
    return data


def _path(payload: Any, reason: str) -> str:
    if reason in {TOO_LARGE, NOT_AN_OBJECT} or not isinstance(payload, dict | list | tuple):
        return ""
    return find_path(payload, lambda part: _reason_of(part) == reason, max_depth=MAX_DEPTH)


def _reason_of(part: Any) -> str:
    """Return the reason why a value, or an object with one key, is rejected. Empty if it is accepted."""
    containers: list[Any] = []
    try:
        plain = _check_values((part,), containers)
        _encode_checked(part, _check(containers) and plain, sys.maxsize)
    except CodecError as error:
        return error.reason
    return ""


def canonical(value: Any) -> bytes:
    """Return the same bytes for equal JSON values, independent of key order."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _encode_subclasses(value: Any) -> bytes:
    # Enums, defaultdicts and numpy floats: the standard library writes them as their base types.
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _check(level: list[Any]) -> bool:
    """Reject values that JSON does not have. Return True if every value is of a plain built-in type.

    It works level by level, without recursion, so that a payload cannot exhaust the stack. A payload that contains
    itself is too deep.
    """
    plain = True
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
    """Check the values of one container. Collect nested containers in ``below``."""
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
