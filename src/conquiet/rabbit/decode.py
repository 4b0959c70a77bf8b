"""From the bytes of a body to a JSON object, or to the reason why not. Pure.

msgspec refuses what ``json.loads`` lets through: NaN, Infinity, ``1e999``, UTF-16, lone surrogates. SPEC(004 §2.2).
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

DEFAULT_MAX_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Unreadable:
    """This message can never be handled as it is: a failure of the message, not of the system.

    Attributes:
        reason: A constant of this package, never a piece of the message.
    """

    reason: str


_TOO_LARGE = Unreadable("body larger than max_body_bytes")
_NOT_UTF8 = Unreadable("body is not UTF-8")
_NOT_JSON = Unreadable("body is not JSON")
_TOO_DEEP = Unreadable("body is nested too deeply")
_NOT_AN_OBJECT = Unreadable("body is not a JSON object")

_decode = msgspec.json.Decoder().decode


def decode(body: bytes, max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, Any] | Unreadable:
    """Parse ``body`` as one JSON object in UTF-8. The size is checked before a single byte is parsed."""
    if len(body) > max_bytes:
        return _TOO_LARGE
    try:
        value = _decode(body)
    except UnicodeDecodeError:
        return _NOT_UTF8
    except msgspec.DecodeError:
        return _NOT_JSON
    except RecursionError:
        return _TOO_DEEP
    return value if isinstance(value, dict) else _NOT_AN_OBJECT
