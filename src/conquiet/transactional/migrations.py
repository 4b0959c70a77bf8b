"""Create the tables of inbox and outbox, and migrate tables of an earlier version.

A table's version is kept in its comment ("conquiet schema 3"), so that it commits with the change it describes: on
MySQL and MariaDB, where DDL is not transactional, one ALTER TABLE does both. Missing columns are found by comparing the
table with ``metadata()``; they override the version in the comment. SQLite has no comments: there the columns decide.

    version   inbox                    outbox
    1         key and time             without event and headers
    2         digest                   event
    3                                  headers

Changes are additions only: workers of the version before continue while the tables change, and can be deployed again.

See docs/decisions/0068.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import inspect, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateColumn, CreateIndex

from conquiet.core.log import FactLogger
from conquiet.db.dialects import require_supported
from conquiet.db.driver_errors import driver_code_of
from conquiet.db.errors import OperationInfo, as_write_error
from conquiet.errors import ConfigurationError, LockAcquisitionError
from conquiet.transactional.metadata import metadata
from conquiet.transactional.schema import (
    INBOX_TABLE,
    OUTBOX_TABLE,
    SCHEMA_MARK,
    SCHEMA_VERSION,
    schema_comment,
    statements,
)
from conquiet.transactional.sql_dialect import dialect_named

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.schema import Table

logger = FactLogger(__name__)

_LOCK_WAIT_S: Final = 60
_ALTER_WAIT_S: Final = 10
"""Longest wait of an ALTER TABLE for transactions that use the table: all others wait behind it."""

_NOT_NOW: Final = frozenset({1142, 1205, "42501", "55P03"})
"""ALTER is not granted; a long transaction uses the table."""

_WRITTEN: Final = re.compile(rf"{SCHEMA_MARK} (\d+)")

_PG_LOCK: Final = text("SELECT pg_advisory_xact_lock(hashtext('conquiet create_tables'))")
# Locks of MySQL are server-wide, so the name contains the database; at most 64 characters. MySQL 9.7 has no MD5().
_MYSQL_LOCK_NAME: Final = "CONCAT('conquiet.schema.', LEFT(SHA2(COALESCE(DATABASE(), ''), 256), 40))"
_MYSQL_LOCK: Final = text(f"SELECT GET_LOCK({_MYSQL_LOCK_NAME}, {_LOCK_WAIT_S})")
_MYSQL_UNLOCK: Final = text(f"SELECT RELEASE_LOCK({_MYSQL_LOCK_NAME})")


@dataclass(frozen=True, slots=True)
class TableLayout:
    """One table compared with what this version expects.

    Attributes:
        table: Its name.
        exists: Whether it is there.
        recorded: The version in its comment; None without one, and on SQLite.
        missing_columns: Columns it lacks.
        missing_indexes: Indexes it lacks.
        statements: The statements that migrate it to this version; empty if there is nothing to change.
    """

    table: str
    exists: bool
    recorded: int | None
    missing_columns: tuple[str, ...]
    missing_indexes: tuple[str, ...]
    statements: tuple[str, ...]

    @property
    def is_newer(self) -> bool:
        """True if a later version of conquiet created it."""
        return self.recorded is not None and self.recorded > SCHEMA_VERSION

    @property
    def is_behind(self) -> bool:
        """True if it exists and lacks a column or an index, or its comment names an earlier version."""
        lacks = bool(self.missing_columns or self.missing_indexes)
        return self.exists and (lacks or (self.recorded is not None and self.recorded < SCHEMA_VERSION))


def create_tables(engine: "Engine", *, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE) -> None:
    """Create the tables of inbox and outbox unless they exist. Safe to call from every process at start.

    Tables that an earlier version made get the columns they lack. If the user may not ALTER them, or a long transaction
    uses them, that is logged as a warning with the statement; ``migrate_tables`` raises an error then.

    Args:
        engine: MySQL, MariaDB, PostgreSQL or SQLite.
        inbox: Name of the inbox table, if not the default.
        outbox: Name of the outbox table, if not the default.
    """
    require_supported(engine)
    with _translated("creating the tables of inbox and outbox"), engine.connect() as connection, _locked(connection):
        for layout in _layouts(connection, inbox, outbox):
            if not layout.exists:
                for statement in layout.statements:
                    _run(connection, statement)
            # A missing index is left to migrate_tables: it can take long to build, and this runs at every start.
            elif layout.missing_columns and not layout.is_newer:
                _alter_or_warn(connection, layout)
        connection.commit()


def migrate_tables(
    engine: "Engine", *, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE, dry_run: bool = False
) -> tuple[str, ...]:
    """Migrate the tables of inbox and outbox to the layout of this version; return the statements.

    Creates missing tables, columns and indexes, and writes the version into the comments of the tables. A second call
    finds nothing to do. Hosts that call it at the same time wait for each other. Workers may continue to run.

    Args:
        engine: MySQL, MariaDB, PostgreSQL or SQLite.
        inbox: Name of the inbox table, if not the default.
        outbox: Name of the outbox table, if not the default.
        dry_run: Return the statements and run none.

    Raises:
        ConfigurationError: A later version of conquiet made a table.
        DbWriteError: The database refused a statement. Earlier statements stay on MySQL and MariaDB, where each
            statement commits; PostgreSQL and SQLite roll back. Another call continues from there.
        LockAcquisitionError: Another host is migrating for longer than a minute.
    """
    require_supported(engine)
    with _translated("migrating the tables of inbox and outbox"), engine.connect() as connection:
        if dry_run:
            return _wanted(connection, inbox, outbox)
        with _locked(connection):
            # Compared under the lock: another host may just have made the change.
            wanted = _wanted(connection, inbox, outbox)
            for statement in wanted:
                _alter(connection, statement)
            connection.commit()
        return wanted


def table_layouts(
    engine: "Engine", *, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE
) -> tuple[TableLayout, TableLayout]:
    """Compare the inbox and the outbox with what this version expects. Reads only."""
    require_supported(engine)
    with _translated("reading the layout of inbox and outbox"), engine.connect() as connection:
        return _layouts(connection, inbox, outbox)


def _wanted(connection: "Connection", inbox: str, outbox: str) -> tuple[str, ...]:
    found = _layouts(connection, inbox, outbox)
    for layout in found:
        if layout.is_newer:
            raise ConfigurationError(
                f"{layout.table} has schema {layout.recorded}, and this version of conquiet knows {SCHEMA_VERSION}: "
                "migrate with the newest version that uses these tables"
            )
    return tuple(statement for layout in found for statement in layout.statements)


def _layouts(connection: "Connection", inbox: str, outbox: str) -> tuple[TableLayout, TableLayout]:
    database = connection.dialect.name
    wanted = metadata(database, inbox=inbox, outbox=outbox).tables
    create = statements(database, inbox=inbox, outbox=outbox)
    # The file has all statements of the inbox first, then those for the outbox.
    second = [index for index, statement in enumerate(create) if statement.startswith("CREATE TABLE")][1]
    return (
        _layout(connection, wanted[inbox], inbox, create[:second]),
        _layout(connection, wanted[outbox], outbox, create[second:]),
    )


def _layout(connection: "Connection", wanted: "Table", name: str, create: list[str]) -> TableLayout:
    found: Any = inspect(connection)
    if not found.has_table(wanted.name, schema=wanted.schema):
        return TableLayout(name, exists=False, recorded=None, missing_columns=(), missing_indexes=(),
            statements=tuple(create))  # fmt: skip
    columns = {one["name"] for one in found.get_columns(wanted.name, schema=wanted.schema)}
    indexes = {one["name"] for one in found.get_indexes(wanted.name, schema=wanted.schema)}
    comment = ""
    if connection.dialect.supports_comments:
        comment = found.get_table_comment(wanted.name, schema=wanted.schema)["text"] or ""
    written = _WRITTEN.search(comment)
    recorded = int(written[1]) if written else None
    missing = [column for column in wanted.columns if column.name not in columns]
    absent = sorted((index for index in wanted.indexes if index.name not in indexes), key=lambda index: str(index.name))
    changes = [f"ADD COLUMN {CreateColumn(column).compile(dialect=connection.dialect)}".strip() for column in missing]
    needs_mark = connection.dialect.supports_comments and (recorded is None or recorded < SCHEMA_VERSION)
    new_comment = _comment(comment, connection.dialect.name) if needs_mark else None
    return TableLayout(
        name,
        exists=True,
        recorded=recorded,
        missing_columns=tuple(column.name for column in missing),
        missing_indexes=tuple(str(index.name) for index in absent),
        statements=(
            *_alters(connection.dialect.name, name, changes, new_comment),
            *(str(CreateIndex(index).compile(dialect=connection.dialect)).strip() for index in absent),
        ),
    )


def _alters(database: str, table: str, changes: list[str], comment: str | None) -> Iterator[str]:
    """Yield the statements that make the changes and write the comment."""
    name = dialect_named(database).quote(table)
    if database in {"mysql", "mariadb"}:
        parts = [*changes, *([] if comment is None else [f"COMMENT = '{comment}'"])]
        if parts:
            yield f"ALTER TABLE {name} {', '.join(parts)}"
        return
    if database == "postgresql":
        changes = [", ".join(changes)] if changes else []
    for change in changes:
        yield f"ALTER TABLE {name} {change}"
    if comment is not None:
        yield f"COMMENT ON TABLE {name} IS '{comment}'"


def _comment(before: str, database: str) -> str:
    """Return a table's comment with this version in it, escaped for an SQL literal. Other text in it is kept."""
    marked = schema_comment()
    after = f"{before} ({marked})" if before else marked
    if _WRITTEN.search(before):
        after = _WRITTEN.sub(marked, before)
    if database != "postgresql":
        after = after.replace("\\", "\\\\")
    return after.replace("'", "''")


def _alter_or_warn(connection: "Connection", layout: TableLayout) -> None:
    additions = layout.statements[: len(layout.statements) - len(layout.missing_indexes)]
    try:
        with _savepoint(connection):
            for statement in additions:
                _alter(connection, statement)
    except SQLAlchemyError as error:
        code = driver_code_of(error)
        if code not in _NOT_NOW:
            raise
        logger.warning(
            "columns not added: run the statements yourself, or 'conquiet db migrate'",
            table=layout.table,
            columns=", ".join(layout.missing_columns),
            errno=code,
            statement="; ".join(additions),
        )


def _savepoint(connection: "Connection") -> "AbstractContextManager[object]":
    """Return a savepoint, which PostgreSQL needs to continue a transaction after an error; the others need none."""
    return connection.begin_nested() if connection.dialect.name == "postgresql" else nullcontext()


def _alter(connection: "Connection", statement: str) -> None:
    """Run a statement with a short lock wait: while it waits for a long transaction, all others wait behind it."""
    database = connection.dialect.name
    if database == "postgresql":
        _run(connection, f"SET LOCAL lock_timeout = '{_ALTER_WAIT_S}s'")
    if database not in {"mysql", "mariadb"}:
        _run(connection, statement)
        return
    before = connection.execute(text("SELECT @@SESSION.lock_wait_timeout")).scalar_one()
    _run(connection, f"SET SESSION lock_wait_timeout = {_ALTER_WAIT_S}")
    try:
        _run(connection, statement)
    finally:
        _run(connection, f"SET SESSION lock_wait_timeout = {int(before)}")


def _run(connection: "Connection", statement: str) -> None:
    # Sent unchanged: a colon or a percent sign in the comment of a table is not a parameter.
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


@contextmanager
def _locked(connection: "Connection") -> Iterator[None]:
    """Keep other hosts from changing the tables at the same time."""
    database = connection.dialect.name
    if database == "postgresql":  # ends with the transaction; DDL is part of it
        connection.execute(_PG_LOCK)
    elif database == "sqlite":
        _become_the_writer(connection)
    else:
        if connection.execute(_MYSQL_LOCK).scalar() != 1:
            raise LockAcquisitionError(
                f"the lock for changing the tables could not be acquired within {_LOCK_WAIT_S} s: another host is "
                "migrating",
                resource="conquiet.schema",
                waited_s=_LOCK_WAIT_S,
            )
        try:
            yield
        finally:
            connection.execute(_MYSQL_UNLOCK)
        return
    yield


def _become_the_writer(connection: "Connection") -> None:
    connection.begin()
    # An engine may begin transactions in a listener (the recipe of SQLAlchemy's documentation).
    if not getattr(connection.connection.dbapi_connection, "in_transaction", False):
        _run(connection, "BEGIN IMMEDIATE")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise as_write_error(error, OperationInfo(what)) from error
