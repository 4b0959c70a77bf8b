"""Find the path of a rejected value in a payload: ``order.items[3].price``. Pure, and used for errors only.

A path shows keys and no values. It takes a second pass over a rejected payload: the first pass, which every payload
takes, keeps no paths because that costs as much as the check itself.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from conquiet.core.redaction import printable

Test = Callable[[Any], bool]


def find_path(payload: Any, *, bad_value: Test, bad_key: Test, max_depth: int) -> str:
    """Return the path of the first bad value, or of the object with the first bad key. Empty if there is none.

    It works level by level down to ``max_depth``, because a payload may contain itself. Beyond that depth it returns
    the path of the first container, which is nested too deeply.
    """
    level: list[tuple[str, Any]] = [("", payload)]
    for _ in range(max_depth):
        below: list[tuple[str, Any]] = []
        for path, container in level:
            if isinstance(container, dict) and any(bad_key(key) for key in container):
                return path or "its top level"
            for step, value in _steps(path, container):
                if bad_value(value):
                    return step
                if isinstance(value, dict | list | tuple):
                    below.append((step, value))
        if not below:
            return ""
        level = below
    return printable(level[0][0])


def is_not_text(value: object) -> bool:
    """Return True for a key that JSON does not allow."""
    return not isinstance(value, str)


def is_not_finite(value: object) -> bool:
    """Return True for NaN and the infinities."""
    return isinstance(value, float) and not math.isfinite(value)


def is_no_json(value: object) -> bool:
    """Return True for a value of a type that JSON does not have."""
    return not (value is None or isinstance(value, str | int | float | dict | list | tuple))


def is_not_utf8(value: object) -> bool:
    """Return True for text with a lone surrogate."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def has_too_many_digits(value: object) -> bool:
    """Return True for an int that Python does not convert to text."""
    if not isinstance(value, int):
        return False
    try:
        str(int(value))
    except ValueError:
        return True
    return False


def never(_: object) -> bool:
    """Return False."""
    return False


def _steps(path: str, container: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(container, dict):
        for key, value in container.items():
            name = printable(key, limit=40)
            yield (f"{path}.{name}" if path else name), value
    else:
        for index, value in enumerate(container):
            yield f"{path}[{index}]", value
