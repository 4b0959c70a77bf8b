"""Decode the body of a delivery as a JSON object, or return the reason of the failure. Pure. SPEC(004 §2.2)."""

from dataclasses import dataclass
from typing import Any, Final

from conquiet.core import json_codec
from conquiet.core.json_codec import CodecError, decode_payload

DEFAULT_MAX_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The message can never be handled. The message is at fault, not the system.

    Attributes:
        reason: A constant of this package, never a part of the message.
    """

    reason: str


_NOT_JSON: Final = Unreadable("body is not JSON")
_REASONS: Final = {
    json_codec.TOO_LARGE: Unreadable("body larger than max_body_bytes"),
    json_codec.NOT_UTF8: Unreadable("body is not UTF-8"),
    json_codec.TOO_DEEP: Unreadable("body is nested too deeply"),
    json_codec.NOT_AN_OBJECT: Unreadable("body is not a JSON object"),
}


def decode(body: bytes, max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, Any] | Unreadable:
    """Parse ``body`` as one JSON object in UTF-8. The size is checked before parsing."""
    try:
        return decode_payload(body, max_bytes=max_bytes)
    except CodecError as error:
        return _REASONS.get(error.reason, _NOT_JSON)
