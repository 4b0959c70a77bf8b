"""Find columns by name, ignoring case: the databases take ``id`` and ``ID`` for one column. Pure.

Cached per shape, because every write calls these functions.
"""

from functools import lru_cache


@lru_cache(1_024)
def find_column(name: str, columns: tuple[str, ...]) -> str | None:
    """Return the one of ``columns`` that is the column ``name``, in its own spelling; None if there is none."""
    return next((column for column in columns if column.lower() == name.lower()), None)


@lru_cache(1_024)
def exclude(name: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``columns`` without the column ``name``, in any spelling."""
    return tuple([column for column in columns if column.lower() != name.lower()])
