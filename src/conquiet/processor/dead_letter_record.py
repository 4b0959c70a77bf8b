"""The stored form of a dead letter: the message, its error and its attempts. Pure.

The text of an exception often quotes the message (``invalid address: jane@…``), so it is stored only for conquiet's
errors, which quote nothing, for ``Reject``, because its reason is written to be read, or if ``store_error_text`` is
set. Type and traceback are always stored: they hold names and source lines, no values. Credentials are removed from
both texts: user and password of a URL, ``password=…`` and similar. A dead letter necessarily holds the message.

See docs/decisions/0018.
"""

import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from conquiet.core.redaction import printable, scrub_credentials
from conquiet.errors import ConquietError
from conquiet.processor.failed_attempts import error_type_of
from conquiet.processor.policy import Reason, Reject, Retry

RECORD_VERSION = 1
_FRAMES = 25
_CAUSES = 5
_TEXT = 500
_KNOWN_FRAMES = 256


@dataclass(frozen=True, slots=True)
class Failure:
    """The stored form of an exception."""

    type: str
    text: str
    traceback: str


def describe(error: BaseException | None, *, store_text: bool) -> Failure | None:
    """Return the parts of an exception that may be stored."""
    if error is None:
        return None
    shown = store_text or isinstance(error, ConquietError | Reject | Retry)
    return Failure(error_type_of(error), _text(error) if shown else "", _frames(error))


class DeadRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The JSON object in the field ``data`` of a dead letter.

    Attributes:
        v: Version of this format.
        reason: A value of ``Reason``.
        event: Event of the message. Empty if it was not an envelope.
        id: Message id, constant over all attempts; the entry id if there is none.
        entry_id: Entry in the stream that was acknowledged when this was written.
        group: Consumer group that dead-lettered it. A replay returns it to this group.
        attempts: Attempts made.
        deliveries: Deliveries of the last entry, including those to killed processes.
        error_type: Qualified name of the exception class.
        error: Text of the exception, if it may be stored.
        traceback: Frames of the exception, innermost last.
        duration_ms: Duration of the last attempt. Earlier attempts are in the payload, under ``failures``.
        emitted_ms: When it was emitted; first_failed_ms, failed_ms: first and last failure.
        host: Host of the last failure; consumer: name of the engine there.
        payload: The message as stored in the stream. None if it was not readable as JSON.
        raw: Fields of an unreadable entry, as text with escapes.
    """

    reason: str
    id: str
    entry_id: str
    group: str
    v: int = RECORD_VERSION
    event: str = ""
    attempts: int = 0
    deliveries: int = 0
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    duration_ms: int = 0
    emitted_ms: int = 0
    first_failed_ms: int = 0
    failed_ms: int = 0
    host: str = ""
    consumer: str = ""
    payload: dict[str, Any] | None = None
    raw: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"DeadRecord(reason={self.reason!r}, event={self.event!r}, id={self.id!r}, error_type={self.error_type!r})"
        )

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the fields of ``repr()`` without the message: rich would show every field of a struct."""
        return [("reason", self.reason), ("event", self.event), ("id", self.id), ("error_type", self.error_type)]

    @property
    def replayable(self) -> bool:
        """False for an entry that was not an envelope: it would only be dead-lettered again."""
        return self.payload is not None and self.reason not in {Reason.NOT_AN_ENVELOPE.value, Reason.MALFORMED.value}


def _text(error: BaseException) -> str:
    try:
        return printable(scrub_credentials(str(error)), limit=_TEXT)
    except Exception:  # noqa: BLE001 - a foreign __str__ may fail; the message must be settled anyway
        return "<unprintable exception>"


def _frames(error: BaseException) -> str:
    """Return the frames of an exception and of its causes, without exception texts."""
    parts: list[str] = []
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen and len(seen) < _CAUSES:
        seen.add(id(current))
        parts.append(f"{_formatted(current.__traceback__)}{error_type_of(current)}\n")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "caused by:\n".join(parts)


def _formatted(trace: TracebackType | None) -> str:
    """Return the last frames of a traceback. Cached, because handlers usually fail at the same places."""
    places = []
    at = trace
    while at is not None:
        code = at.tb_frame.f_code
        places.append((code.co_filename, code.co_name, at.tb_lineno, at.tb_lasti))
        at = at.tb_next
    key = tuple(places[-_FRAMES:])
    text = _known_frames.get(key)
    if text is None:
        if len(_known_frames) >= _KNOWN_FRAMES:
            _known_frames.clear()
        text = scrub_credentials("".join(traceback.extract_tb(trace, limit=-_FRAMES).format()))
        _known_frames[key] = text
    return text


_known_frames: dict[tuple[tuple[str, str, int, int], ...], str] = {}


def encode_record(record: DeadRecord, payload: bytes | None = None) -> bytes:
    """Return the bytes to store. ``payload`` is the message as bytes, which are inserted unchanged."""
    if payload is not None:
        record.payload = msgspec.Raw(payload)  # type: ignore[assignment]  # a reader decodes it as a dict
    return _encode(record)


_encode = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(DeadRecord).decode
