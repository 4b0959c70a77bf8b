"""Import the public names of a package on first use, so that an extra is needed only where it is used."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from conquiet.core.constructor_help import describe_constructor


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]], *, require: Callable[[], None] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Dotted name of the package.
        homes: Exported names by defining module. A leading dot is relative to the package.
        require: Called before the first import. Raises if an extra is missing.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        module = home_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if require is not None:
            require()
        value = getattr(import_module(module, package), name)
        describe_constructor(value)
        setattr(import_module(package), name, value)  # later accesses bypass this function
        return value

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *home_of})

    return get, names
