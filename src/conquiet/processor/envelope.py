"""The message format: the envelope around the user's data. Pure: dictionaries in, dictionaries out.

The envelope is the JSON object in the entry's single field ``data``, so any reader of the stream
(including ``RedisStreamsQueue``) can read it, and any writer can write one. Version 1:

    key              type     meaning                                                       if missing
    v                1        version of this format                                        rejected
    event            text     name of the event: selects the handler                        rejected
    id               text     identity of the message, constant over all attempts           the entry id
    key              text     messages of one key run one at a time, in order               no order
    ticket           int      its position in the order of its key, set by the server       not assigned yet
    data             object   the user's data                                               {}
    attempt          int      number of this attempt, from 1                                1
    max_attempts     int      total number of attempts, instead of the handler's setting;   the handler's
                              more only up to ProcessorSettings.max_attempts_limit
    emitted_ms       int      when it was first emitted, milliseconds since the epoch       0, unknown
    delay_until_ms   number   do not handle before this time                                no delay
    first_failed_ms  int      when its first failed attempt ended                           never failed
    group            text     the only consumer group that handles it (a retry)             every group
    replays          int      how often it was replayed from the dead letters               0
    reserved         true     its start under a rate limit is reserved                      false
    reserved_ms      int      time of the reserved start                                    until run
    unknown_since_ms int      when it was first read by a process without its handler       never
    keep_result_ms   int      how long the result of its handler is kept                    not kept
    from_entry       text     the entry it replaces: makes equal payloads distinct          original entry
    headers          object   names and strings of the sender, including a trace context    none
    first_attempt    text     trace context of its first attempt                            not traced
    failures         list     its failed attempts: number, end, duration, error, frames     none

The shortest envelope that another program can write is ``{"v": 1, "event": "email.send", "data": {…}}``.

Compatibility: a reader ignores unknown keys, and a retry keeps them, so new optional keys need no new
version. ``v`` is increased only if an old reader would handle the message incorrectly. A reader rejects
an unknown version.

See docs/decisions/0016.
"""

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from conquiet.core.tracing import read_headers
from conquiet.core.validation import require_positive, require_text
from conquiet.errors import ConfigurationError
from conquiet.processor.failed_attempts import FailedAttempt, read_attempts

VERSION = 1
MAX_NAME = 200
"""Longest event name and longest id, in characters."""

MAX_KEY = 255
"""Longest key, in characters: the same as for the key of an outbox row."""

_LARGEST = 2**53
"""Largest number in an envelope: Lua numbers are floats, which lose precision beyond it."""

_USUAL = frozenset({"v", "event", "id", "attempt", "emitted_ms", "data"})
"""The keys of every emitted message. Most messages have no others."""

_OF_ONE_LIFE = frozenset(
    {
        "attempt",
        "first_failed_ms",
        "delay_until_ms",
        "reserved",
        "reserved_ms",
        "unknown_since_ms",
        "from_entry",
        "ticket",
        "first_attempt",
    }
)
"""The keys that a replay removes."""

_read_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_join = msgspec.json.Encoder().encode

NO_ENVELOPE = "it is not an envelope: the key v is missing"
NEWER_VERSION = "its envelope has a version that this release does not know"
BAD_EVENT = "the key event of its envelope is not a non-empty text of at most 200 characters"
BAD_ID = "the key id of its envelope is not a non-empty text of at most 200 characters"
BAD_DATA = "the key data of its envelope is not an object"
BAD_NUMBER = "a number in its envelope is missing its type or range"
BAD_KEY = "the key key of its envelope is not a non-empty text of at most 255 characters"
BAD_GROUP = "the key group of its envelope is not a non-empty text"


class EnvelopeError(ValueError):
    """A payload is not a valid envelope. ``reason`` is one of this module's constants, never content."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Envelope(msgspec.Struct):
    """One decoded message. The attributes are the keys of the format above.

    It is a msgspec struct, and mutable, because one is built for each message.
    """

    event: str
    id: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    attempt: int = 1
    max_attempts: int | None = None
    emitted_ms: int = 0
    delay_until_ms: int | None = None
    first_failed_ms: int | None = None
    group: str | None = None
    replays: int = 0
    reserved: bool = False
    reserved_ms: int | None = None
    unknown_since_ms: int | None = None
    keep_result_ms: int | None = None
    key: str | None = None
    ticket: int | None = None
    headers: dict[str, str] | None = None
    first_attempt: str | None = None
    failures: tuple[FailedAttempt, ...] = ()

    @property
    def key_text(self) -> str:
        """The key in its JSON encoding, as the scripts use it. Empty without a key."""
        return "" if self.key is None else text_of_key(self.key)

    def __repr__(self) -> str:
        return f"Envelope(event={self.event!r}, id={self.id!r}, attempt={self.attempt})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same fields as ``repr()``, without data."""
        return [("event", self.event), ("id", self.id), ("attempt", self.attempt)]


def text_of_key(key: str) -> str:
    """Return the JSON encoding of a key, without its quotes."""
    return _join(key)[1:-1].decode()


def new_id() -> str:
    """Return a unique id: 96 random bits as text."""
    return os.urandom(12).hex()


def check_new(
    event: object, message_id: object, max_attempts: object = None, limit: int | None = None, key: object = None
) -> None:
    """Validate the arguments for a new envelope. ``limit`` is the largest allowed ``max_attempts``.

    Raises:
        ConfigurationError: Names the invalid argument and the requirement.
    """
    require_text("event", event, most=MAX_NAME)
    require_text("id", message_id, most=MAX_NAME)
    if key is not None:
        require_text("key", key, most=MAX_KEY)
    most_attempts = _LARGEST if limit is None else limit
    if max_attempts is not None and require_positive("max_attempts", max_attempts) > most_attempts:
        raise ConfigurationError(
            f"max_attempts must be at most {most_attempts}, got {max_attempts}"
            + ("" if limit is None else ". ProcessorSettings(max_attempts_limit=…) allows more")
        )


def to_payload(envelope: Envelope) -> dict[str, Any]:
    """Return the JSON object to store. Default values are left out, except ``attempt``."""
    # The scripts expect the key directly after the version, and the ticket after the key.
    ordered = {key: value for key in ("key", "ticket") if (value := getattr(envelope, key)) is not None}
    payload: dict[str, Any] = {
        "v": VERSION,
        **ordered,
        "event": envelope.event,
        "id": envelope.id,
        "attempt": envelope.attempt,
        "emitted_ms": envelope.emitted_ms,
        "data": envelope.data,
    }
    for key in (
        "max_attempts",
        "delay_until_ms",
        "first_failed_ms",
        "group",
        "reserved_ms",
        "unknown_since_ms",
        "keep_result_ms",
        "headers",
    ):
        value = getattr(envelope, key)
        if value is not None:
            payload[key] = value
    if envelope.replays:
        payload["replays"] = envelope.replays
    if envelope.reserved:
        payload["reserved"] = True
    return payload


def from_payload(payload: Mapping[str, Any], *, entry_id: str) -> Envelope:
    """Return the envelope in ``payload``.

    Args:
        payload: The decoded JSON object of an entry.
        entry_id: The entry id, used as message id if the payload has none.

    Raises:
        EnvelopeError: It is not an envelope, or its version is unknown.
    """
    get = payload.get
    if get("v") != VERSION:  # True == 1 is accepted
        raise EnvelopeError(NO_ENVELOPE if get("v") is None else NEWER_VERSION)
    event = get("event")
    if type(event) is not str or not 0 < len(event) <= MAX_NAME:
        raise EnvelopeError(BAD_EVENT)
    message_id = get("id", entry_id)
    if type(message_id) is not str or not 0 < len(message_id) <= MAX_NAME:
        raise EnvelopeError(BAD_ID)
    data = get("data")
    if data is None:
        data = {}
    elif type(data) is not dict:
        raise EnvelopeError(BAD_DATA)
    attempt = get("attempt", 1)
    emitted_ms = get("emitted_ms", 0)
    if type(attempt) is not int or type(emitted_ms) is not int:
        raise EnvelopeError(BAD_NUMBER)
    if not (0 < attempt <= _LARGEST and 0 <= emitted_ms <= _LARGEST):
        raise EnvelopeError(BAD_NUMBER)
    envelope = Envelope(event, message_id, data, attempt, None, emitted_ms)
    if payload.keys() != _USUAL:
        _read_rare(payload, envelope)
    return envelope


def split_raw(raw: bytes) -> dict[str, Any]:
    """Return the keys of a stored message with their undecoded values."""
    parts: dict[str, Any] = _read_parts(raw)
    return parts


def encode_raw(payload: Mapping[str, Any]) -> bytes:
    """Encode a stored message again. Undecoded values are kept unchanged, at any depth and size."""
    return _join(payload)


def next_attempt(
    payload: Mapping[str, Any], envelope: Envelope, *, group: str, entry_id: str, failed_ms: int
) -> dict[str, Any]:
    """Return the payload of the next attempt. Unknown keys are kept; delays and reservations are removed."""
    following = same_attempt(payload, envelope, group=group, entry_id=entry_id)
    following["attempt"] = envelope.attempt + 1
    if envelope.first_attempt is not None:
        following["first_attempt"] = envelope.first_attempt
    if envelope.failures:
        following["failures"] = envelope.failures
    following["first_failed_ms"] = failed_ms if envelope.first_failed_ms is None else envelope.first_failed_ms
    return following


def same_attempt(
    payload: Mapping[str, Any], envelope: Envelope, *, group: str, entry_id: str, reserved: bool = False
) -> dict[str, Any]:
    """Return the payload of the same attempt, to be delivered again later to this group.

    ``from_entry`` makes the payload unique, because a sorted set stores equal payloads once. An earlier rate-limit
    reservation is removed, because it will have expired; ``reserved`` marks a new one.
    """
    later = dict(payload)
    for key in ("delay_until_ms", "reserved", "reserved_ms", "unknown_since_ms"):
        later.pop(key, None)
    later["id"] = envelope.id
    later["group"] = group
    later["from_entry"] = entry_id
    if reserved:
        later["reserved"] = True
    return later


def with_key_first(payload: Mapping[str, Any], envelope: Envelope, *, group: str, entry_id: str) -> dict[str, Any]:
    """Return the payload of a message with a key from another program, in the key order that ``emit`` writes."""
    first = {"v": VERSION, "key": envelope.key}
    rest = {key: value for key, value in payload.items() if key not in {"v", "key", "ticket"}}
    return first | rest | {"id": envelope.id, "group": group, "from_entry": entry_id}


def replayed(payload: Mapping[str, Any], *, group: str) -> dict[str, Any]:
    """Return the payload of a replayed dead letter for a group, with the attempt reset to 1."""
    again = {key: value for key, value in payload.items() if key not in _OF_ONE_LIFE}
    again["attempt"] = 1
    again["group"] = group
    replays = payload.get("replays", 0)
    again["replays"] = replays + 1 if type(replays) is int and replays >= 0 else 1
    return again


_RARE_NUMBERS = (
    "max_attempts", "first_failed_ms", "replays", "reserved_ms", "unknown_since_ms", "keep_result_ms", "ticket",
)  # fmt: skip


def _read_rare(payload: Mapping[str, Any], envelope: Envelope) -> None:
    """Read the keys that few messages have."""
    get = payload.get
    for key in _RARE_NUMBERS:
        value = get(key)
        if value is None:
            continue
        if type(value) is not int or not (1 if key in {"max_attempts", "keep_result_ms"} else 0) <= value <= _LARGEST:
            raise EnvelopeError(BAD_NUMBER)
        setattr(envelope, key, value)
    until = get("delay_until_ms")
    if until is not None:
        if type(until) not in {int, float} or not -_LARGEST <= until <= _LARGEST:  # also rejects NaN
            raise EnvelopeError(BAD_NUMBER)
        envelope.delay_until_ms = int(until)
    group = get("group")
    if group is not None:
        if type(group) is not str or not group:
            raise EnvelopeError(BAD_GROUP)
        envelope.group = group
    envelope.reserved = get("reserved") is True
    order_key = get("key")
    if order_key is not None:
        if type(order_key) is not str or not 0 < len(order_key) <= MAX_KEY:
            raise EnvelopeError(BAD_KEY)
        envelope.key = order_key
    envelope.headers = read_headers(get("headers"))
    first = get("first_attempt")
    envelope.first_attempt = first if type(first) is str and len(first) <= MAX_NAME else None
    envelope.failures = read_attempts(get("failures"))
