"""The tables of the inbox and the outbox as SQLAlchemy ``MetaData``: for Alembic, and for ``create_all``.

The tables are equal to the schema files; a test compares them on each database. The statements of this package do
not use these objects (see ``sql_dialect``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

from conquiet.core.validation import require_table
from conquiet.errors import ConfigurationError
from conquiet.transactional.inbox_keys import MAX_PART_BYTES
from conquiet.transactional.schema import INBOX_TABLE, OUTBOX_TABLE, schema_comment

_MYSQL_OPTIONS: Final = {
    f"{database}_{option}": value
    for database in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("row_format", "DYNAMIC"))
}


_BYTES: Final = LargeBinary()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Types:
    """The column types of one database.

    Attributes:
        short: Names and ids, up to 255 bytes.
        id: The id of an outbox message.
        digest: 32 bytes.
        payload: Up to 16 MiB.
        time: With microseconds.
        seq: Place in the outbox.
        flag: 0 or 1.
        count: Attempts.
        index_prefix: Whether the name of an index begins with the name of its table: PostgreSQL and SQLite require
            unique names of all indexes in a schema.
        options: Of the tables.
    """

    short: TypeEngine[Any] = _BYTES
    id: TypeEngine[Any] = _BYTES
    digest: TypeEngine[Any] = _BYTES
    payload: TypeEngine[Any] = _BYTES
    headers: TypeEngine[Any] = _BYTES
    time: TypeEngine[Any]
    seq: TypeEngine[Any]
    flag: TypeEngine[Any]
    count: TypeEngine[Any]
    index_prefix: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


_MYSQL: Final = _Types(
    short=mysql.VARBINARY(MAX_PART_BYTES),
    id=mysql.VARBINARY(36),
    digest=mysql.VARBINARY(32),
    payload=mysql.MEDIUMBLOB(),
    headers=mysql.BLOB(),
    time=mysql.DATETIME(fsp=6),
    seq=mysql.BIGINT(unsigned=True),
    flag=mysql.TINYINT(unsigned=True),
    count=mysql.INTEGER(unsigned=True),
    index_prefix=False,
    options=_MYSQL_OPTIONS,
)
_TYPES: Final = {
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "postgresql": _Types(
        time=postgresql.TIMESTAMP(timezone=True),
        seq=BigInteger(),
        flag=SmallInteger(),
        count=Integer(),
    ),
    "sqlite": _Types(
        time=Text(),
        seq=Integer(),
        flag=Integer(),
        count=Integer(),
        options={"sqlite_autoincrement": True},
    ),
}


def metadata(
    database: str, *, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE, into: MetaData | None = None
) -> MetaData:
    """Return the two tables for one database.

    >>> target_metadata = [Base.metadata, metadata("postgresql")]  # doctest: +SKIP

    Args:
        database: SQLAlchemy's name of the dialect: ``mysql``, ``mariadb``, ``postgresql`` or ``sqlite``
            (``engine.dialect.name``). Types and index names depend on it.
        inbox: Name of the inbox table, if not the default; ``schema.table`` names a schema.
        outbox: Name of the outbox table, if not the default.
        into: Where to put the tables; a new ``MetaData`` if left out.

    Raises:
        ConfigurationError: The database is none of these, or a name is wrong.
    """
    types = _TYPES.get(database)
    if types is None:
        raise ConfigurationError(f"database must be one of {', '.join(sorted(_TYPES))}")
    made = MetaData() if into is None else into
    _inbox(made, require_table("inbox", inbox), types)
    _outbox(made, require_table("outbox", outbox), types)
    return made


def _inbox(made: MetaData, full_name: str, types: _Types) -> None:
    schema, _, name = full_name.rpartition(".")
    options = {key: value for key, value in types.options.items() if key != "sqlite_autoincrement"}
    Table(
        name,
        made,
        Column("source", types.short, nullable=False),
        Column("consumer_group", types.short, nullable=False),
        Column("message_id", types.short, nullable=False),
        Column("handled_at", types.time, nullable=False),
        Column("digest", types.digest, nullable=True),
        PrimaryKeyConstraint("source", "consumer_group", "message_id"),
        Index(_index(name, "by_age", types), "handled_at"),
        schema=schema or None,
        comment=schema_comment(),
        **options,
    )


def _outbox(made: MetaData, full_name: str, types: _Types) -> None:
    schema, _, name = full_name.rpartition(".")
    identity = [Identity(always=False)] if isinstance(types.seq, BigInteger) and types.index_prefix else []
    Table(
        name,
        made,
        Column("seq", types.seq, *identity, primary_key=True, autoincrement=True),
        Column("message_id", types.id, nullable=False),
        Column("target", types.short, nullable=False),
        Column("order_key", types.short, nullable=True),
        Column("free", types.flag, nullable=False),
        Column("event", types.short, nullable=True),
        Column("payload", types.payload, nullable=False),
        Column("headers", types.headers, nullable=True),
        Column("created_at", types.time, nullable=False),
        Column("due_at", types.time, nullable=False),
        Column("attempts", types.count, nullable=False, server_default=text("0")),
        Column("parked", types.flag, nullable=False, server_default=text("0")),
        Column("reason", types.short, nullable=True),
        Index(_index(name, "by_due", types), "target", "parked", "free", "due_at", "seq"),
        Index(_index(name, "by_key", types), "target", "order_key", "parked", "seq"),
        schema=schema or None,
        comment=schema_comment(),
        **types.options,
    )


def _index(table: str, name: str, types: _Types) -> str:
    return f"{table}_{name}" if types.index_prefix else name
