"""The payload of an outbox row: the one strict JSON of ``core.json_codec``, without the relay's own fields. Pure.

A payload is refused in the transaction that writes it: in the relay no caller would see the error.
"""

from collections.abc import Mapping
from typing import Any, Final

from conquiet.core.json_codec import TOO_LARGE, CodecError, decode_payload, encode_payload
from conquiet.errors import PayloadError
from conquiet.transactional.inbox_keys import EVENT, OUTBOX_ID

MAX_PAYLOAD_BYTES: Final = 1_048_576 - 512
"""The default limit of a stream, less what the relay adds: the id and the event."""

_ANY_SIZE: Final = 1 << 40
"""The limit was checked when the row was written."""


def encode(payload: Mapping[str, Any], *, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Return the payload as UTF-8 JSON.

    Raises:
        PayloadError: It is not a JSON object, too large, or has a field of the relay's. The text has nothing of it.
    """
    if isinstance(payload, dict):
        for field in (OUTBOX_ID, EVENT):
            if field in payload:
                raise _refusal(
                    f"it has a field {field}, which the relay writes: leave it out when you pass a message on, "
                    "or two messages would carry one id",
                    "a field of the relay's",
                    field,
                )
    try:
        return encode_payload(payload, max_bytes=max_bytes)
    except CodecError as error:
        refused = error
    # Out here, so that the codec's error is not its context.
    problem = f"{TOO_LARGE} ({max_bytes})" if refused.reason == TOO_LARGE else refused.explanation
    raise _refusal(problem, refused.reason, refused.path)


def decode(data: bytes) -> dict[str, Any]:
    """Return the payload of a row."""
    return decode_payload(data, max_bytes=_ANY_SIZE)


def _refusal(problem: str, reason: str, path: str) -> PayloadError:
    return PayloadError(f"the outbox refused a payload: {problem}. Nothing was written", reason=reason, path=path)
