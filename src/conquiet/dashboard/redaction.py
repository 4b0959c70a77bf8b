"""Redact payloads, and apply edits of redacted payloads. Pure."""

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
    """Return the payload, with masked values of fields that are named like secrets or personal data."""
    return _redact(payload, 0)


class HiddenValueError(ValueError):
    """An edit cannot be applied, because it changes the length of a list with masked values."""


def restore(original: Any, shown: Any, edited: Any) -> Any:
    """Apply an edit of ``shown`` to the original. Values that were not shown are kept. Pure.

    >>> restore({"card": "4111", "n": 1}, {"card": "•••", "n": 1}, {"card": "•••", "n": 2})
    {'card': '4111', 'n': 2}

    A field that is not edited keeps its original value, masked or not. A field that the redaction removes is kept.

    Raises:
        HiddenValueError: The edit changes the length of a list with hidden values, so they cannot be matched.
    """
    if edited == shown:
        return original
    if isinstance(original, dict) and isinstance(shown, dict) and isinstance(edited, dict):
        hidden = {name: value for name, value in original.items() if name not in shown}
        return hidden | {
            name: restore(original[name], shown[name], value) if name in shown and name in original else value
            for name, value in edited.items()
        }
    if isinstance(original, list) and isinstance(shown, list) and isinstance(edited, list) and shown != original:
        if not len(original) == len(shown) == len(edited):
            raise HiddenValueError
        return [restore(*those) for those in zip(original, shown, edited, strict=True)]
    return edited


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
