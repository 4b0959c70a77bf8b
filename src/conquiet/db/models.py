"""A write operation and its outcome.

See docs/decisions/0003.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from conquiet.core.operations import DbOperationType
from conquiet.core.validation import require_identifier, require_table
from conquiet.errors import ConfigurationError

__all__ = ["DbOperation", "DbOperationType", "WriteOutcome"]


@dataclass(frozen=True, slots=True)
class DbOperation:
    """One mutation of one row. SPEC(003 §5.1).

    Names are checked here, before any I/O: a valid name can be used in a statement between backticks.
    Values and the id are left out of ``repr()``; they may be personal data.

    Attributes:
        table: ``table`` or ``schema.table``.
        op_type: INSERT or UPDATE.
        id_value: Primary key or unique identifier of the row.
        payload: Column to value.
        metadata: Context for the caller. Nothing here reads it.
    """

    table: str
    op_type: DbOperationType
    id_value: Any = field(repr=False)
    payload: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.payload, Mapping):
            raise ConfigurationError("payload must map columns to values")
        _check_names(self.table, tuple(self.payload))


@lru_cache(1_024)
def _check_names(table: str, columns: tuple[str, ...]) -> None:
    """Raise for a name that is not plain. A shape that passed is not checked again."""
    require_table("table", table)
    for column in columns:
        require_identifier("a column of payload", column)


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """The result of one write.

    Attributes:
        rows: Rows inserted, or rows an UPDATE matched (even if the values were the same already).
            Zero after an UPDATE means that there is no such row, which is not an error.
        duplicate: True if the row of an INSERT existed already.
    """

    rows: int
    duplicate: bool = False
