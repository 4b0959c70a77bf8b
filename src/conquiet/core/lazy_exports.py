"""Import the public names of a package on first use, so that an extra is needed only where it is used.

The names are listed once, as imports in the stub of the package, ``__init__.pyi``: type checkers and editors read them
there, and so does the package itself.

    from conquiet.app import App as App        "as" exports a name from a stub
"""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from conquiet.core.constructor_help import describe_constructor

_EXPORT = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def stub_exports(package: str) -> dict[str, str]:
    """Return the names that the stub of a package exports, with their modules."""
    module: Any = import_module(package)
    # Not importlib.resources: it takes longer to import than the rest of conquiet.
    stub: bytes = module.__loader__.get_data(f"{module.__path__[0]}/__init__.pyi")
    return {name: home for home, name in _EXPORT.findall(stub.decode())}


def lazy_exports(
    package: str, home_of: Mapping[str, str], *, require: Callable[[], None] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Dotted name of the package.
        home_of: The module of each exported name.
        require: Called before the first import. Raises if an extra is missing.
    """

    def get(name: str) -> Any:
        module = home_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if require is not None:
            require()
        value = getattr(import_module(module), name)
        describe_constructor(value)
        setattr(import_module(package), name, value)  # later accesses bypass this function
        return value

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *home_of})

    return get, names
