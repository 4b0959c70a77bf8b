"""The function that reads entries of other programs, as a setting. Without msgspec: settings load without it.

What is made of its result is in ``entry_format``.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from conquiet.core.functions import require_arguments, require_plain_function
from conquiet.errors import ConfigurationError

Decode: TypeAlias = Callable[[dict[str, bytes]], Mapping[str, Any]]
"""Turns the fields of an entry into a payload. Called on the event loop or on the reading thread: it must not wait."""


def require_decode(decode: object) -> None:
    """Raise ``ConfigurationError`` for a ``decode`` that is no plain function of one argument, or None."""
    if decode is None:
        return
    if not callable(decode):
        raise ConfigurationError(
            f"decode must be a function from the fields of an entry (names to bytes) to a dict, got a "
            f"{type(decode).__name__}"
        )
    require_plain_function("decode", decode)
    require_arguments("decode", decode, "fields")
