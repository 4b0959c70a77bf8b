"""Let ``help(Class.__init__)`` show what ``help(Class)`` shows, for public classes.

The docstring of a class describes its constructor. Without this, ``help()`` of the constructor shows Python's own text.
"""

from collections.abc import Mapping
from types import FunctionType


def describe_constructor(value: object) -> None:
    """Give the constructor of a class of conquiet the docstring of the class, unless it has one."""
    if isinstance(value, type) and value.__module__.partition(".")[0] == "conquiet":
        constructor = vars(value).get("__init__")
        if isinstance(constructor, FunctionType) and constructor.__doc__ is None:
            constructor.__doc__ = value.__doc__


def describe_constructors(names: Mapping[str, object]) -> None:
    """Do so for every class of a package: ``describe_constructors(globals())`` at its end."""
    for value in tuple(names.values()):
        describe_constructor(value)
