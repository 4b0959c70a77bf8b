"""A payload as it lies in the outbox: strict JSON. Pure.

Refused is whatever would not come out as it went in: NaN, keys that are not strings, tuples, objects
of your own. Better in the transaction that writes it than in the relay, where nobody waits for the error.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from conquiet.bridge.keys import OUTBOX_ID
from conquiet.errors import PayloadError

MAX_PAYLOAD_BYTES: Final = 1_048_576 - 128
"""As much as a stream's usual limit, less what the id takes that is put in on the way out."""

_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(payload: Mapping[str, Any], *, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Return the payload as UTF-8 JSON.

    Raises:
        PayloadError: It is not a JSON object, too large, or has a field of ours. The text has nothing of it.
    """
    if not isinstance(payload, dict):
        raise _refusal("it is not a dict")
    if OUTBOX_ID in payload:
        raise _refusal(
            f"it has a field {OUTBOX_ID}, which the relay writes: leave it out when you pass a message on, "
            "or two messages would carry one id"
        )
    reason = None
    try:
        text = _dump(payload)
        data = text.encode()
        if json.loads(text) != payload:
            reason = "it holds what JSON would change: keys that are not strings, or tuples (use lists)"
    except (TypeError, ValueError, RecursionError):  # UnicodeEncodeError is a ValueError
        reason = "it holds what JSON cannot say: NaN, an infinity, an object, text that cannot be UTF-8"
    if reason is not None:
        raise _refusal(reason)  # out here, so that the encoder's error, which quotes values, is not its context
    if len(data) > max_bytes:
        raise _refusal(f"it has {len(data)} bytes, and at most {max_bytes} are allowed")
    return data


def decode(data: bytes) -> dict[str, Any]:
    """Return the payload of a row.

    By msgspec, which is there wherever a target is: ten times as fast as the standard library.
    """
    from msgspec.json import decode

    payload: dict[str, Any] = decode(data)
    return payload


def _refusal(reason: str) -> PayloadError:
    return PayloadError(f"the outbox refused a payload: {reason}. Nothing was written", reason=reason)
