"""Find the path of a rejected value in a payload: ``order.items[3].price``. Pure, and used for errors only.

A path shows keys and no values. It takes a second pass over a rejected payload: the first pass, which every payload
takes, keeps no paths because that costs as much as the check itself.
"""

from collections.abc import Callable, Iterator
from typing import Any

from conquiet.core.redaction import printable


def find_path(payload: Any, is_rejected: Callable[[Any], bool], *, max_depth: int) -> str:
    """Return the path of the first rejected value, or of the object with the first rejected key. Empty without one.

    ``is_rejected`` receives values other than containers, and each key as an object with this key only. The search
    works level by level down to ``max_depth``, because a payload may contain itself. Beyond that depth it returns
    the path of the first container, which is nested too deeply.
    """
    level: list[tuple[str, Any]] = [("", payload)]
    for _ in range(max_depth):
        below: list[tuple[str, Any]] = []
        for path, container in level:
            if isinstance(container, dict) and any(is_rejected({key: None}) for key in container):
                return path or "its top level"
            for step, value in _steps(path, container):
                if isinstance(value, dict | list | tuple):
                    below.append((step, value))
                elif is_rejected(value):
                    return step
        if not below:
            return ""
        level = below
    return printable(level[0][0])


def _steps(path: str, container: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(container, dict):
        for key, value in container.items():
            name = printable(key, limit=40)
            yield (f"{path}.{name}" if path else name), value
    else:
        for index, value in enumerate(container):
            yield f"{path}[{index}]", value
