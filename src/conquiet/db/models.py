"""What is written, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from conquiet.errors import ConfigurationError
from conquiet.kernel.operations import DbOperationType
from conquiet.kernel.validation import require_identifier, require_table

__all__ = ["DbOperation", "DbOperationType", "WriteOutcome"]


@dataclass(frozen=True, slots=True)
class DbOperation:
    """One mutation of one row. SPEC(003 §5.1).

    Names are checked here, before any I/O: what passes can stand in a statement between backticks.
    Values and the id are left out of ``repr()``; they may be personal data.

    Attributes:
        table: ``table`` or ``schema.table``.
        op_type: INSERT or UPDATE.
        id_value: Primary key or unique identifier of the row.
        payload: Column to value.
        metadata: Context for the caller. Nothing here looks at it.
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
    """Raise for a name that is not plain. A shape that passed is not looked at again."""
    require_table("table", table)
    for column in columns:
        require_identifier("a column of payload", column)


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What one write did.

    Attributes:
        rows: Rows inserted, or rows an UPDATE matched (also when the values were the same already).
            Zero after an UPDATE means that there is no such row, which is not an error.
        duplicate: True when an INSERT found its row there already. The row exists, as asked.
    """

    rows: int
    duplicate: bool = False
