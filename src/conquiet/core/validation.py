"""Validate settings. A value that passes is not checked again.

Each error names the setting and the required value. It shows the value only if it is a number: a string setting may
hold a credential.

See docs/decisions/0028.
"""

import math
import re
from typing import TypeVar

from conquiet.errors import ConfigurationError

T = TypeVar("T")

_CONTROL = re.compile("[\x00-\x1f\x7f]")
# Lone surrogates cannot be encoded as UTF-8. They come from JSON, or from a shell with another encoding.
_SURROGATE = re.compile("[\ud800-\udfff]")

# MySQL allows more in a quoted identifier. Spaces, backticks, dots and unicode look-alikes are rejected because of the
# risk of an injection.
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,63}")
_PLAIN = "plain SQL identifier: letters, digits, _ and $, not starting with a digit, at most 64 characters"


def require_positive(name: str, value: object, *, zero_allowed: bool = False, most: int | None = None) -> int:
    """Return ``value`` if it is an int above zero and at most ``most``. ``True`` is rejected."""
    wanted = "a whole number, zero or more" if zero_allowed else "a positive integer"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} must be {wanted}, got {_kind(value)}")
    if value < 0 or (value == 0 and not zero_allowed):
        raise ConfigurationError(f"{name} must be {wanted}, got {value}")
    if most is not None and value > most:
        raise ConfigurationError(f"{name} must be at most {most}, got {value}")
    return value


def require_bool(name: str, value: object) -> None:
    """Raise ``ConfigurationError`` unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {_kind(value)}")


def require_seconds(name: str, value: object, *, zero_allowed: bool = False) -> float:
    """Return ``value`` as a float if it is a finite number of seconds above zero."""
    wanted = "a number of seconds, zero or more" if zero_allowed else "a positive number of seconds"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name} must be {wanted}, got {_kind(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero_allowed):
        raise ConfigurationError(f"{name} must be {wanted}, got {number:g}")
    return number


def require_text(name: str, value: object, *, most: int | None = None) -> str:
    """Return ``value`` if it is a string of UTF-8 with at least one visible character and no control character.

    ``most`` is its maximum number of characters.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a non-empty string, got {_kind(value)}")
    if not value.strip():
        raise ConfigurationError(f"{name} must be a non-empty string, got an empty one")
    if _CONTROL.search(value):
        raise ConfigurationError(f"{name} must not contain control characters such as a newline")
    if _SURROGATE.search(value):
        raise ConfigurationError(f"{name} is not valid UTF-8; write it in UTF-8")
    if most is not None and len(value) > most:
        raise ConfigurationError(f"{name} must have at most {most} characters, got {len(value)}")
    return value


def require_instance(name: str, value: object, kind: type[T]) -> T:
    """Return ``value`` if it is an object of the class ``kind``."""
    if not isinstance(value, kind):
        raise ConfigurationError(f"{name} must be {_with_article(kind)}, got {_kind(value)}")
    return value


def require_string_or_none(name: str, value: object) -> None:
    """Raise ``ConfigurationError`` unless ``value`` is a string, which may be empty, or None."""
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a string, got {_kind(value)}")


def require_selection(where: object, kind: type, *, limit: object = None, on_progress: object = None) -> None:
    """Check the selection of a call on dead letters or jobs, before any of them is read or changed.

    Args:
        where: The filter.
        kind: Class of the filter.
        limit: Maximum number of dead letters or jobs. None means all.
        on_progress: Called after every step.

    Raises:
        ConfigurationError: An argument is wrong. Nothing was done.
    """
    if not isinstance(where, kind):
        name = kind.__name__
        raise ConfigurationError(f"where must be a {name}, got {_kind(where)}; {name}() selects all")
    if limit is not None:
        require_positive("limit", limit)
    if on_progress is not None and not callable(on_progress):
        raise ConfigurationError("on_progress must be a function")


def require_identifier(name: str, value: object) -> str:
    """Return ``value`` if it is one plain SQL identifier (a column)."""
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None:
        raise ConfigurationError(f"{name} must be a {_PLAIN}")
    return value


def require_table(name: str, value: object) -> str:
    """Return ``value`` if it is ``table`` or ``schema.table``, both plain SQL identifiers."""
    parts = value.split(".") if isinstance(value, str) else []
    if not 1 <= len(parts) <= 2 or any(_IDENTIFIER.fullmatch(part) is None for part in parts):  # noqa: PLR2004 - schema.table
        raise ConfigurationError(f"{name} must be 'table' or 'schema.table', each a {_PLAIN}")
    assert isinstance(value, str)  # noqa: S101 - parts is empty otherwise
    return value


def _kind(value: object) -> str:
    return "nothing (None)" if value is None else _with_article(type(value))


def _with_article(kind: type) -> str:
    name = kind.__name__
    return f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}"
