"""The setting ``decode``: a function that reads entries written by other programs.

It does not import msgspec, so that settings load without it. ``entry_format`` calls the function.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from conquiet.core.functions import require_arguments, require_plain_function
from conquiet.errors import ConfigurationError

Decode: TypeAlias = Callable[[dict[str, bytes]], Mapping[str, Any]]
"""Returns the payload for the fields of an entry. Called on the event loop or the reading thread: it must not block."""


def require_decode(decode: object) -> None:
    """Raise ``ConfigurationError`` unless ``decode`` is None or a plain function of one argument."""
    if decode is None:
        return
    if not callable(decode):
        raise ConfigurationError(
            f"decode must be a function from the fields of an entry (names to bytes) to a dict, got a "
            f"{type(decode).__name__}"
        )
    require_plain_function("decode", decode)
    require_arguments("decode", decode, "fields")
