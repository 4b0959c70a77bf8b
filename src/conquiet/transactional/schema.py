"""Create the tables.

The statements are in ``schema.sql`` (MySQL and MariaDB), ``schema_postgresql.sql`` and ``schema_sqlite.sql``, to be
read and run by hand too. ``metadata`` has the same tables for SQLAlchemy and Alembic.
"""

import re
import sqlite3
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from typing import Final

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from conquiet.core.log import FactLogger
from conquiet.core.validation import require_table
from conquiet.db.dialects import is_postgres, require_supported
from conquiet.db.errors import OperationInfo, as_write_error
from conquiet.db.sql import quoted
from conquiet.errors import DbWriteError
from conquiet.transactional.sql_dialect import SqlDialect, dialect_named

INBOX_TABLE: Final = "conquiet_inbox"
OUTBOX_TABLE: Final = "conquiet_outbox"

# 1146 no such table, 1054 no such column. SQLite has one number for every statement it cannot compile.
_NO_TABLE: Final = frozenset({1146, 1054, sqlite3.SQLITE_ERROR, "42P01", "42703"})

NO_COLUMN: Final = frozenset({1054, sqlite3.SQLITE_ERROR, "42703"})
"""Error codes of a statement that names a column which the table does not have."""

_COLUMN_EXISTS: Final = frozenset({1060, "42701"})
_NOT_NOW: Final = frozenset({1142, 1205, "42501", "55P03"})
"""ALTER is not granted; a long transaction uses the table."""

_FILES: Final = {
    "mysql": "schema.sql",
    "mariadb": "schema.sql",
    "postgresql": "schema_postgresql.sql",
    "sqlite": "schema_sqlite.sql",
}

_ALTER_WAIT_S: Final = 10

logger = FactLogger(__name__)

_ONE_AT_A_TIME: Final = text("SELECT pg_advisory_xact_lock(hashtext('conquiet create_tables'))")
_COMMENT: Final = re.compile(r"--[^\n]*")


DATABASES: Final = tuple(sorted(_FILES))
"""Databases that have a schema, by SQLAlchemy's names."""


def create_tables(engine: Engine, *, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE) -> None:
    """Create the tables of inbox and outbox unless they exist. Safe to call from every process at start.

    Tables that an earlier version made get the columns they lack (``digest`` of the inbox, ``event`` and ``headers`` of
    the outbox). If the user may not ALTER them, or a long transaction uses them, that is logged as a warning with the
    statement.

    Args:
        engine: MySQL, MariaDB, PostgreSQL or SQLite.
        inbox: Name of the inbox table, if not the default.
        outbox: Name of the outbox table, if not the default.
    """
    require_supported(engine)
    try:
        with engine.begin() as connection:
            if is_postgres(engine):
                # IF NOT EXISTS alone fails when two processes create the table at the same time.
                connection.execute(_ONE_AT_A_TIME)
            for statement in statements(engine.dialect.name, inbox=inbox, outbox=outbox):
                connection.execute(text(statement))
        sql = dialect_named(engine.dialect.name)
        with engine.connect() as connection:
            _add_column(connection, sql, inbox, sql.inbox_columns(inbox), "digest")
            for column in ("event", "headers"):
                _add_column(connection, sql, outbox, sql.outbox_columns(outbox, column), column)
            connection.commit()
    except SQLAlchemyError as error:
        raise as_write_error(error, OperationInfo("creating the tables of inbox and outbox")) from error


def _add_column(connection: Connection, sql: SqlDialect, table: str, probe: TextClause, column: str) -> None:
    """Add a column that a table of an earlier version lacks."""
    try:
        with _savepoint(connection, sql):
            connection.execute(probe)
    except SQLAlchemyError as error:
        if code_of(as_write_error(error, OperationInfo("reading the columns of a table"))) not in NO_COLUMN:
            raise
    else:
        return
    statement = sql.add_column(table, column)
    try:
        with _savepoint(connection, sql):
            _alter(connection, statement, sql.name)
    except SQLAlchemyError as error:
        code = code_of(as_write_error(error, OperationInfo("adding a column to a table")))
        if code in _COLUMN_EXISTS:  # another process was first
            return
        if code not in _NOT_NOW:
            raise
        logger.warning(
            "column not added: run the statement yourself",
            table=table,
            column=column,
            errno=code,
            statement=statement,
        )


def _savepoint(connection: Connection, sql: SqlDialect) -> AbstractContextManager[object]:
    """Return what lets a PostgreSQL transaction survive an error; the others do anyway."""
    return connection.begin_nested() if sql.name == "postgresql" else nullcontext()


def _alter(connection: Connection, statement: str, database: str) -> None:
    """Run an ALTER TABLE with a short lock wait: while it waits for a long transaction, all others wait behind it."""
    if database == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = '{_ALTER_WAIT_S}s'"))
    if database != "mysql":
        connection.execute(text(statement))
        return
    before = connection.execute(text("SELECT @@SESSION.lock_wait_timeout")).scalar_one()
    connection.execute(text(f"SET SESSION lock_wait_timeout = {_ALTER_WAIT_S}"))
    try:
        connection.execute(text(statement))
    finally:
        connection.execute(text(f"SET SESSION lock_wait_timeout = {int(before)}"))


def if_missing(error: DbWriteError, table: str) -> DbWriteError:
    """Return the error to raise for a failed statement of ours: for a missing table it names the remedy."""
    if code_of(error) not in _NO_TABLE:
        return error
    return DbWriteError(
        f"the table {table} does not exist, or lacks a column; create it once with "
        "conquiet.transactional.create_tables(engine) or 'conquiet db init'",
        table=table,
        operation=error.operation,
        errno=error.errno,
        sqlstate=error.sqlstate,
    )


def code_of(error: DbWriteError) -> int | str | None:
    """Return the number of an error, or its SQLSTATE on PostgreSQL."""
    return error.errno if error.sqlstate is None else error.sqlstate


def statements(database: str, *, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE) -> list[str]:
    """Return the statements of a database's schema file for these table names.

    Args:
        database: SQLAlchemy's name of the dialect.
        inbox: Name of the inbox table.
        outbox: Name of the outbox table.
    """
    require_table("inbox", inbox)
    require_table("outbox", outbox)
    script = files("conquiet.transactional").joinpath(_FILES[database]).read_text("utf-8")
    plain = _COMMENT.sub("", script)
    for default, wanted in ((INBOX_TABLE, inbox), (OUTBOX_TABLE, outbox)):
        mark = dialect_named(database).mark
        index = f"{mark}{wanted.rpartition('.')[2]}_by"
        plain = plain.replace(f"{mark}{default}{mark}", quoted(wanted, mark)).replace(f"{mark}{default}_by", index)
    return [part.strip() for part in plain.split(";") if part.strip()]
