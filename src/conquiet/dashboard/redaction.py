"""What may be shown of a payload. Pure."""

import re
from typing import Any, Final

from conquiet.core.redaction import scrub_credentials

MASK: Final = "•••"
_NAMES: Final = re.compile(
    r"pass|secret|token|api.?key|auth|credential|cookie|session|private|ssn|iban|card|cvv|cvc|pin$|"
    r"mail|phone|mobile|address|street|zip|postcode|birth|first.?name|last.?name|full.?name|^name$|surname|ip$",
    re.IGNORECASE,
)
_DEEPEST: Final = 12
_MOST_TEXT: Final = 2_000


def redact_secrets(_stream: str, _event: str, payload: Any) -> Any:
    """Return the payload with the values of fields masked that are named like secrets or personal data."""
    return _redact(payload, 0)


def _redact(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return MASK
    if isinstance(value, dict):
        return {name: MASK if _NAMES.search(str(name)) else _redact(one, depth + 1) for name, one in value.items()}
    if isinstance(value, list):
        return [_redact(one, depth + 1) for one in value]
    if isinstance(value, str):
        return scrub_credentials(value[:_MOST_TEXT])
    return value
