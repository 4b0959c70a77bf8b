"""conquiet: process it, commit it, then acknowledge it.

The names of ``__init__.pyi`` are imported on first use, so that a program needs only the extras of the names it uses.
docs/api.md lists every public name.
"""

from conquiet.core.lazy_exports import lazy_exports, stub_exports

_HOMES = stub_exports(__name__)
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
