"""Name the tables, and return the statements that create them.

The statements are in ``schema.sql`` (MySQL and MariaDB), ``schema_postgresql.sql`` and ``schema_sqlite.sql``, to be
read and run by hand too. ``metadata`` has the same tables for SQLAlchemy and Alembic; ``migrations`` creates and
changes them.
"""

import re
import sqlite3
from importlib.resources import files
from typing import Final

from conquiet.core.validation import require_table
from conquiet.db.errors import code_of
from conquiet.errors import DbWriteError
from conquiet.transactional.sql_dialect import DIALECTS, dialect_named

INBOX_TABLE: Final = "conquiet_inbox"
OUTBOX_TABLE: Final = "conquiet_outbox"

SCHEMA_VERSION: Final = 3
"""Version of the tables' layout. The comment of a table names it."""

SCHEMA_MARK: Final = "conquiet schema"

# 1146 no such table, 1054 no such column. SQLite has one number for every statement it cannot compile.
_NO_TABLE: Final = frozenset({1146, 1054, sqlite3.SQLITE_ERROR, "42P01", "42703"})

NO_COLUMN: Final = frozenset({1054, sqlite3.SQLITE_ERROR, "42703"})
"""Error codes of a statement that names a column which the table does not have."""

_COMMENT: Final = re.compile(r"--[^\n]*")


DATABASES: Final = tuple(sorted(DIALECTS))
"""Databases that have a schema, by SQLAlchemy's names."""


def schema_comment() -> str:
    """Return the comment of a table of this version."""
    return f"{SCHEMA_MARK} {SCHEMA_VERSION}"


def if_missing(error: DbWriteError, table: str) -> DbWriteError:
    """Return the error to raise for a failed statement of ours: for a missing table it names the remedy."""
    if code_of(error) not in _NO_TABLE:
        return error
    return DbWriteError(
        f"the table {table} does not exist, or lacks a column; create it once with "
        "conquiet.transactional.create_tables(engine) or 'conquiet db init'; 'conquiet db migrate' adds what it lacks",
        table=table,
        operation=error.operation,
        errno=error.errno,
        sqlstate=error.sqlstate,
    )


def statements(database: str, *, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE) -> list[str]:
    """Return the statements of a database's schema file for these table names.

    Args:
        database: SQLAlchemy's name of the dialect.
        inbox: Name of the inbox table.
        outbox: Name of the outbox table.
    """
    require_table("inbox", inbox)
    require_table("outbox", outbox)
    dialect = dialect_named(database)
    script = files("conquiet.transactional").joinpath(dialect.schema_file).read_text("utf-8")
    plain = _COMMENT.sub("", script)
    for default, wanted in ((INBOX_TABLE, inbox), (OUTBOX_TABLE, outbox)):
        mark = dialect.mark
        index = f"{mark}{wanted.rpartition('.')[2]}_by"
        plain = plain.replace(f"{mark}{default}{mark}", dialect.quote(wanted)).replace(f"{mark}{default}_by", index)
    return [part.strip() for part in plain.split(";") if part.strip()]
