"""Which column is which: the databases do not tell ``id`` from ``ID``. Pure.

Asked once per shape and remembered: this is passed at every write.
"""

from functools import lru_cache


@lru_cache(1_024)
def spelling_of(name: str, columns: tuple[str, ...]) -> str | None:
    """The one of ``columns`` that is the column ``name``, as it is spelled there; None if there is none."""
    return next((column for column in columns if column.lower() == name.lower()), None)


@lru_cache(1_024)
def without(name: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    """All of ``columns`` but the column ``name``, however it is spelled."""
    return tuple([column for column in columns if column.lower() != name.lower()])
