"""Compare the tables of inbox and outbox with the schema of this version. The same on every database."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from conquiet.management.doctor.findings import Finding, Severity, run_checks

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.transactional.migrations import TableLayout

_FIX = "conquiet db migrate (--dry-run prints the statements); it is safe while workers run"


def examine_schema(engine: "Engine") -> list[Finding]:
    """Report what existing tables lack."""
    from conquiet.transactional.migrations import table_layouts

    return run_checks((check_layout,), [layout for layout in table_layouts(engine) if layout.exists])


def check_layout(layouts: "list[TableLayout]") -> Iterator[Finding]:
    """Report tables that another version created."""
    from conquiet.transactional.schema import SCHEMA_VERSION

    for layout in layouts:
        if layout.is_newer:
            yield Finding(
                "database.schema",
                Severity.NOTE,
                f"{layout.table} has schema {layout.recorded}, and this version of conquiet knows {SCHEMA_VERSION}",
                "a later version has changed the table; its changes are additions, so this version still works",
                "update conquiet here too",
            )
        elif layout.missing_columns:
            needed = layout.missing_columns != ("digest",)  # the inbox works without this column
            yield Finding(
                "database.schema",
                Severity.ERROR if needed else Severity.WARNING,
                f"{layout.table} is behind schema {SCHEMA_VERSION}: it lacks {', '.join(layout.missing_columns)}",
                "statements on it fail" if needed else "a message with a repeated entry id counts as a duplicate",
                _FIX,
            )
        elif layout.is_behind and not layout.missing_indexes:  # missing indexes are a finding of each database
            yield Finding(
                "database.schema",
                Severity.WARNING,
                f"{layout.table} has schema {layout.recorded}, and this version of conquiet expects {SCHEMA_VERSION}",
                "the next version may need what this migration makes",
                _FIX,
            )
