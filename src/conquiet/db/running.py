"""Sending a statement and taking its answer.

On a connection of the writer's own (``WriterConnection``) a statement is compiled by SQLAlchemy once
per shape and then handed to the driver as it is. ``Connection.execute`` spends two to three times the
driver's own time on every statement, mostly on results that are thrown away at once; for a writer that is
the larger part of its work. Where somebody listens to the engine (tracing), and on every connection that
is not ours, statements go the usual way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import TextClause
from sqlalchemy.engine import Connection, Dialect

from conquiet.db import sql
from conquiet.db.batch import Rows
from conquiet.db.faults import mark_never_sent, number_of, reply_missing

_NO_PARAMS: Final[Mapping[str, Any]] = {}
_POSITIONAL_BY_PERCENT: Final = frozenset({"format", "pyformat"})


class WriterConnection(Connection):
    """A connection of the writer's own pool.

    Attributes:
        raw: The driver's connection, if statements may go to it directly.
    """

    raw: Any = None


@dataclass(slots=True)  # not frozen: that would cost a microsecond at every statement
class Answer:
    """All of a statement's result, fetched. Not shown by ``repr()`` in full: rows are data."""

    rowcount: int
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()

    def __repr__(self) -> str:
        return f"Answer(rowcount={self.rowcount})"

    def first(self) -> dict[str, Any] | None:
        """The first row by column, or None."""
        return dict(zip(self.columns, self.rows[0], strict=True)) if self.rows else None

    def all(self) -> list[dict[str, Any]]:
        """All rows by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def scalar(self) -> Any:
        """The first column of the first row, or None."""
        return self.rows[0][0] if self.rows else None


def run(conn: Connection, statement: TextClause, params: Mapping[str, Any] = _NO_PARAMS) -> Answer:
    """Execute a statement and fetch its answer."""
    raw = conn.raw if isinstance(conn, WriterConnection) else None
    if raw is None:
        return _run_usually(conn, statement, params)
    string, order = _for_driver(statement, conn.dialect)
    return _send(raw, string, params if order is None else tuple([params[name] for name in order]))


def insert_rows(conn: Connection, rows: Rows) -> None:
    """INSERT many rows; on MySQL in one statement, which is there as a whole or not at all."""
    columns = rows.columns
    statement = sql.insert(rows.table, columns)
    string, _ = _for_driver(statement, conn.dialect)
    if conn.dialect.paramstyle not in _POSITIONAL_BY_PERCENT:
        conn.execute(statement, [sql.values(op.payload, columns) for op in rows.ops])
        return
    # The compiled statement with its one row of binds repeated. As a text of its own each number of rows would
    # have to be parsed and kept, with thousands of binds; the drivers' executemany costs twice the time for each row.
    head = string[: string.index(" VALUES ")] + " VALUES "
    raw = conn.raw if isinstance(conn, WriterConnection) else None
    if raw is None:  # somebody listens and is shown the statement: no value in it, not even a number
        conn.exec_driver_sql(head + rows.placeholders(), tuple(rows.flat()))
        return
    many, bound = rows.spelled()
    _send(raw, head + many, bound)


def select_ids(conn: Connection, table: str, id_column: str, ids: Sequence[Any]) -> Answer:
    """Those of the ids that exist."""
    mark = "%s" if conn.dialect.paramstyle in _POSITIONAL_BY_PERCENT else "?"
    string = sql.select_ids(table, id_column, len(ids), mark)
    raw = conn.raw if isinstance(conn, WriterConnection) else None
    if raw is not None:
        return _send(raw, string, tuple(ids))
    result = conn.exec_driver_sql(string, tuple(ids))
    return Answer(result.rowcount, (id_column,), result.all())


def _run_usually(conn: Connection, statement: TextClause, params: Mapping[str, Any]) -> Answer:
    result = conn.execute(statement, params)
    if not result.returns_rows:
        return Answer(result.rowcount)
    columns = [str(column) for column in result.keys()]  # noqa: SIM118 - iterating it gives rows
    return Answer(result.rowcount, columns, result.all())


def _send(raw: Any, string: str, params: Any) -> Answer:
    cursor = raw.cursor()
    try:
        cursor.execute(string, params or None)
    except Exception as error:
        _say_if_unsendable(error, cursor, string, params)
        raise
    described = cursor.description
    if described is None:
        answer = Answer(cursor.rowcount)
    else:
        answer = Answer(cursor.rowcount, [column[0] for column in described], cursor.fetchall())
    cursor.close()
    return answer


def _say_if_unsendable(error: Exception, cursor: Any, string: str, params: Any) -> None:
    """Note on the error of a value that the driver cannot spell that nothing was sent.

    It looks like any exception that strikes during a statement. But spelling the statement once more fails again, and
    alike. An error with a number is never of this kind.
    """
    if reply_missing(error) and number_of(error) is None and hasattr(cursor, "mogrify"):
        try:
            cursor.mogrify(string, params or None)
        except Exception as again:  # noqa: BLE001 - whatever it is
            if type(again) is type(error):
                mark_never_sent(error)


@lru_cache(1_024)
def _for_driver(statement: TextClause, dialect: Dialect) -> tuple[str, tuple[str, ...] | None]:
    """The statement as this driver wants it, and the order of its binds where they have no names."""
    compiled: Any = statement.compile(dialect=dialect)
    return compiled.string, None if compiled.positiontup is None else tuple(compiled.positiontup)
