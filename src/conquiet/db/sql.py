"""Statements, built once per shape. Pure: no I/O, and no value becomes part of a text here.

Bind names are generated (``p0`` for a value to write, ``w0`` for a condition). With names taken
from the payload, a column with the name of another bind would replace it: in the seed's sample
a column ``id_value`` moved the UPDATE to another row.

Identifiers were validated where they came in (``DbOperation``, ``DbConfig``, the helpers), so
backticks around them are enough. SQLite accepts backticks too, PostgreSQL needs double quotes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import TextClause, text

_SHAPES: Final = 1_024

# A current read: sees what was committed after this transaction's snapshot.
FOR_UPDATE: Final = " FOR UPDATE"
SHARED: Final = " LOCK IN SHARE MODE"  # MariaDB does not know FOR SHARE
PLAIN: Final = ""

BACKTICK: Final = "`"
DOUBLE_QUOTE: Final = '"'  # PostgreSQL


def quoted(name: str, mark: str = BACKTICK) -> str:
    """Return a validated ``column``, ``table`` or ``schema.table`` in backticks, or in another quotation mark."""
    return ".".join(f"{mark}{part}{mark}" for part in name.split("."))


@lru_cache(_SHAPES)
def find_column(name: str, columns: tuple[str, ...]) -> str | None:
    """Return the one of ``columns`` that is the column ``name``, in its own spelling; None if there is none.

    The databases take ``id`` and ``ID`` for one column. Cached, because every write calls it.
    """
    return next((column for column in columns if column.lower() == name.lower()), None)


@lru_cache(_SHAPES)
def exclude(name: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``columns`` without the column ``name``, in any spelling."""
    return tuple([column for column in columns if column.lower() != name.lower()])


@lru_cache(_SHAPES)
def insert(table: str, columns: tuple[str, ...]) -> TextClause:
    """Return INSERT of one row; binds ``p0`` … in the order of ``columns``."""
    names = ", ".join(map(quoted, columns))
    values = ", ".join(f":p{i}" for i in range(len(columns)))
    return text(f"INSERT INTO {quoted(table)} ({names}) VALUES ({values})")  # noqa: S608 - validated identifiers


@lru_cache(_SHAPES)
def insert_unless_exists(table: str, columns: tuple[str, ...], id_column: str) -> TextClause:
    """Return INSERT of one row on PostgreSQL: nothing if its id exists. Another unique key is an error."""
    names = ", ".join(quoted(column, DOUBLE_QUOTE) for column in columns)
    values = ", ".join(f":p{i}" for i in range(len(columns)))
    return text(
        f"INSERT INTO {quoted(table, DOUBLE_QUOTE)} ({names}) VALUES ({values}) "  # noqa: S608 - as above
        f"ON CONFLICT ({quoted(id_column, DOUBLE_QUOTE)}) DO NOTHING"
    )


@lru_cache(_SHAPES)
def update(table: str, columns: tuple[str, ...], id_column: str) -> TextClause:
    """Return UPDATE by id; binds ``p0`` … for the columns and ``w0`` for the id."""
    sets = ", ".join(f"{quoted(column)} = :p{i}" for i, column in enumerate(columns))
    return text(f"UPDATE {quoted(table)} SET {sets} WHERE {quoted(id_column)} = :w0")  # noqa: S608 - as above


@lru_cache(_SHAPES)
def update_version(
    table: str, columns: tuple[str, ...], id_column: str, version_column: str, mark: str = BACKTICK
) -> TextClause:
    """Return UPDATE by id (``w0``) and expected version (``w1``), which it raises by one."""
    version = quoted(version_column, mark)
    sets = "".join(f"{quoted(column, mark)} = :p{i}, " for i, column in enumerate(columns))
    return text(
        f"UPDATE {quoted(table, mark)} SET {sets}{version} = {version} + 1 "  # noqa: S608 - as above
        f"WHERE {quoted(id_column, mark)} = :w0 AND {version} = :w1"
    )


@lru_cache(_SHAPES)
def select_row(table: str, id_column: str, suffix: str = PLAIN) -> TextClause:
    """Return SELECT of the whole row with the id ``w0``."""
    return text(f"SELECT * FROM {quoted(table)} WHERE {quoted(id_column)} = :w0{suffix}")  # noqa: S608 - as above


@lru_cache(_SHAPES)
def select_id(table: str, id_column: str, suffix: str = PLAIN) -> TextClause:
    """Return SELECT of the id column of the row with the id ``w0``, to see whether it exists."""
    column = quoted(id_column)
    return text(f"SELECT {column} FROM {quoted(table)} WHERE {column} = :w0{suffix}")  # noqa: S608 - as above


@lru_cache(_SHAPES)
def select_where(
    table: str, columns: tuple[str, ...], nulls: frozenset[str] = frozenset(), suffix: str = PLAIN
) -> TextClause:
    """Return SELECT of the rows in which each of ``columns`` equals its bind ``w0``, ``w1`` and so on.

    The columns in ``nulls`` are bound to NULL, which equals nothing; MySQL's ``<=>`` compares it as a value. The other
    columns keep ``=``: it decides which index is used, and so what is locked.
    """
    where = " AND ".join(
        f"{quoted(column)} {'<=>' if column in nulls else '='} :w{i}" for i, column in enumerate(columns)
    )
    return text(f"SELECT * FROM {quoted(table)} WHERE {where}{suffix}")  # noqa: S608 - as above


@lru_cache(_SHAPES)
def lock_table(table: str) -> TextClause:
    """Return LOCK TABLES for one table, against all other connections."""
    return text(f"LOCK TABLES {quoted(table)} WRITE")


def select_ids(table: str, id_column: str, count: int, mark: str) -> str:
    """Return SELECT of the existing ones of ``count`` ids, for the driver: ``mark`` is its placeholder.

    Not a clause to be compiled: the count varies freely, and SQLAlchemy and ``statement_execution`` cache what they
    compile.
    """
    column = quoted(id_column)
    return f"SELECT {column} FROM {quoted(table)} WHERE {column} IN ({', '.join([mark] * count)})"  # noqa: S608 - as above


def values(payload: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """Return binds ``p0`` … for the columns."""
    return {f"p{i}": payload[column] for i, column in enumerate(columns)}


def conditions(wanted: Sequence[Any]) -> dict[str, Any]:
    """Return binds ``w0`` … for conditions."""
    return {f"w{i}": value for i, value in enumerate(wanted)}
