"""Copy the docstring of public classes to their constructors, for ``help(Class.__init__)``.

The docstring of a class describes its constructor. Without this, ``help()`` of the constructor shows Python's default
text.
"""

from collections.abc import Mapping
from types import FunctionType


def describe_constructor(value: object) -> None:
    """Copy the docstring of a conquiet class to its constructor, unless the constructor has one."""
    if isinstance(value, type) and value.__module__.partition(".")[0] == "conquiet":
        constructor = vars(value).get("__init__")
        if isinstance(constructor, FunctionType) and constructor.__doc__ is None:
            constructor.__doc__ = value.__doc__


def describe_constructors(names: Mapping[str, object]) -> None:
    """Call ``describe_constructor`` for every class of a package: ``describe_constructors(globals())`` at its end."""
    for value in tuple(names.values()):
        describe_constructor(value)
