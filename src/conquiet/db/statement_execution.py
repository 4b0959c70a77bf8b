"""Send a statement and fetch its result.

On a connection of the writer's own pool (``WriterConnection``) SQLAlchemy compiles a statement once per shape, and the
driver gets it directly. ``Connection.execute`` takes two to three times the driver's own time for every statement,
mostly for result objects that the writer discards. If the engine has listeners (tracing), and on every connection of
other pools, statements go through ``Connection.execute``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import TextClause
from sqlalchemy.engine import Connection, Dialect

from conquiet.db import sql
from conquiet.db.driver_errors import number_of
from conquiet.db.errors import mark_not_sent, outcome_unknown
from conquiet.db.statement_batch import Rows

_NO_PARAMS: Final[Mapping[str, Any]] = {}
_POSITIONAL_BY_PERCENT: Final = frozenset({"format", "pyformat"})


class WriterConnection(Connection):
    """A connection of the writer's own pool.

    Attributes:
        raw: The driver's connection, if statements may go to it directly.
    """

    raw: Any = None


@dataclass(slots=True)  # not frozen: that would cost a microsecond at every statement
class StatementResult:
    """All rows of a statement, fetched. ``repr()`` shows none: rows are data."""

    rowcount: int
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()

    def __repr__(self) -> str:
        return f"StatementResult(rowcount={self.rowcount})"

    def first(self) -> dict[str, Any] | None:
        """Return the first row by column, or None."""
        return dict(zip(self.columns, self.rows[0], strict=True)) if self.rows else None

    def all(self) -> list[dict[str, Any]]:
        """Return all rows by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def scalar(self) -> Any:
        """Return the first column of the first row, or None."""
        return self.rows[0][0] if self.rows else None


def execute(conn: Connection, statement: TextClause, params: Mapping[str, Any] = _NO_PARAMS) -> StatementResult:
    """Execute a statement and fetch its result."""
    raw = conn.raw if isinstance(conn, WriterConnection) else None
    if raw is not None:
        string, order = _for_driver(statement, conn.dialect)
        return _send(raw, string, params if order is None else tuple([params[name] for name in order]))
    result = conn.execute(statement, params)
    if not result.returns_rows:
        return StatementResult(result.rowcount)
    columns = [str(column) for column in result.keys()]  # noqa: SIM118 - iterating it gives rows
    return StatementResult(result.rowcount, columns, result.all())


def insert_rows(conn: Connection, rows: Rows) -> None:
    """Insert many rows; on MySQL in one statement, which inserts all or none."""
    columns = rows.columns
    statement = sql.insert(rows.table, columns)
    string, _ = _for_driver(statement, conn.dialect)
    if conn.dialect.paramstyle not in _POSITIONAL_BY_PERCENT:
        conn.execute(statement, [sql.values(op.payload, columns) for op in rows.ops])
        return
    # The compiled statement with its one row of binds repeated. Compiled for each number of rows, it would have to be
    # parsed and cached with thousands of binds; the drivers' executemany costs twice the time for each row.
    head = string[: string.index(" VALUES ")] + " VALUES "
    raw = conn.raw if isinstance(conn, WriterConnection) else None
    if raw is None:  # listeners see the statement: no value in it, not even a number
        conn.exec_driver_sql(head + rows.placeholders(), tuple(rows.flatten()))
        return
    many, bound = rows.inline_integers()
    _send(raw, head + many, bound)


def select_ids(conn: Connection, table: str, id_column: str, ids: Sequence[Any]) -> StatementResult:
    """Return the existing ids."""
    mark = "%s" if conn.dialect.paramstyle in _POSITIONAL_BY_PERCENT else "?"
    string = sql.select_ids(table, id_column, len(ids), mark)
    raw = conn.raw if isinstance(conn, WriterConnection) else None
    if raw is not None:
        return _send(raw, string, tuple(ids))
    result = conn.exec_driver_sql(string, tuple(ids))
    return StatementResult(result.rowcount, (id_column,), result.all())


def _send(raw: Any, string: str, params: Any) -> StatementResult:
    cursor = raw.cursor()
    try:
        cursor.execute(string, params or None)
    except Exception as error:
        _mark_if_not_sent(error, cursor, string, params)
        raise
    described = cursor.description
    if described is None:
        result = StatementResult(cursor.rowcount)
    else:
        result = StatementResult(cursor.rowcount, [column[0] for column in described], cursor.fetchall())
    cursor.close()
    return result


def _mark_if_not_sent(error: Exception, cursor: Any, string: str, params: Any) -> None:
    """Mark encoding errors as "nothing sent".

    The error of a value that the driver cannot encode looks like any exception raised during a statement. Encoding
    the statement again raises the same type. An error with a number is never of this kind.
    """
    if outcome_unknown(error) and number_of(error) is None and hasattr(cursor, "mogrify"):
        try:
            cursor.mogrify(string, params or None)
        except Exception as again:  # noqa: BLE001 - only its type matters
            if type(again) is type(error):
                mark_not_sent(error)


@lru_cache(1_024)
def _for_driver(statement: TextClause, dialect: Dialect) -> tuple[str, tuple[str, ...] | None]:
    """Return the statement for this driver, and the order of its binds if they have no names."""
    compiled: Any = statement.compile(dialect=dialect)
    return compiled.string, None if compiled.positiontup is None else tuple(compiled.positiontup)
