"""Making the tables. The statements are in ``schema.sql``, for people to read and run by hand too."""

import re
import sqlite3
from importlib.resources import files
from typing import Final

from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from conquiet.db.dialects import is_mysql, require_supported
from conquiet.db.faults import About, as_write_error
from conquiet.db.sql import quoted
from conquiet.errors import DbWriteError
from conquiet.kernel.validation import require_table

INBOX_TABLE: Final = "conquiet_inbox"
OUTBOX_TABLE: Final = "conquiet_outbox"

# 1146 of MySQL and MariaDB. SQLite has one number for every statement it cannot make sense of; ours it can.
_NO_TABLE: Final = frozenset({1146, sqlite3.SQLITE_ERROR})

_COMMENT: Final = re.compile(r"--[^\n]*")


def create_tables(engine: Engine, *, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE) -> None:
    """Create the bridge's tables unless they are there. Safe to call from every process at start.

    Args:
        engine: MySQL, MariaDB or SQLite.
        inbox: Name of the inbox table, if not the usual one.
        outbox: Name of the outbox table, if not the usual one.
    """
    require_supported(engine)
    try:
        with engine.begin() as connection:
            for statement in statements(mysql=is_mysql(engine), inbox=inbox, outbox=outbox):
                connection.execute(text(statement))
    except SQLAlchemyError as error:
        raise as_write_error(error, About("creating the tables of the bridge")) from error


def if_missing(error: DbWriteError, table: str) -> DbWriteError:
    """Return what to raise for a statement of ours that failed: a table that is not there has a remedy to name."""
    if error.errno not in _NO_TABLE:
        return error
    return DbWriteError(
        f"the table {table} is not there, or not as conquiet makes it; create it once with "
        "conquiet.bridge.create_tables(engine) or 'conquiet db init'",
        table=table,
        operation=error.operation,
        errno=error.errno,
    )


def statements(*, mysql: bool, inbox: str = INBOX_TABLE, outbox: str = OUTBOX_TABLE) -> list[str]:
    """Return the statements of the schema file, with the tables called as asked. Pure but for reading the file."""
    require_table("inbox", inbox)
    require_table("outbox", outbox)
    script = files("conquiet.bridge").joinpath("schema.sql" if mysql else "schema_sqlite.sql").read_text("utf-8")
    plain = _COMMENT.sub("", script)
    for usual, wanted in ((INBOX_TABLE, inbox), (OUTBOX_TABLE, outbox)):
        plain = plain.replace(f"`{usual}`", quoted(wanted)).replace(f"`{usual}_by", f"`{wanted.rpartition('.')[2]}_by")
    return [part.strip() for part in plain.split(";") if part.strip()]
