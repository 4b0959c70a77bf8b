"""Read the errors of drivers: number, SQLSTATE, and the name of a missing table or column. Pure.

PostgreSQL's SQLSTATE is five characters that mean the same in every version and language.

Names come from the code of the application and are not secret, but the server's text is not repeated: only an
identifier is taken out of it. The name of a column is taken only where conquiet built the statement. In a statement of
the caller an unknown "column" may be a value that was pasted into the SQL without quotes.
"""

import re
import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError

FAILED_TRANSACTION: Final = "25P02"
"""An earlier statement of the transaction failed; PostgreSQL accepts only ROLLBACK, and makes one of COMMIT."""

_NO_SUCH_TABLE: Final = frozenset({1146, "42P01"})
_NO_SUCH_COLUMN: Final = frozenset({1054, "42703"})

_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")

_NAME: Final = r"[A-Za-z0-9_$]+(?:[.-][A-Za-z0-9_$]+)*"
# The name is the first quoted text of the server's message, in every language (lc_messages).
_QUOTED: Final = re.compile(rf"^[^']*'({_NAME})'")
# PostgreSQL quotes by its language: "orders", „orders", « orders ».
_POSTGRES_QUOTED: Final = re.compile(rf"^[^\"«„»]*[\"«„»] ?({_NAME}) ?[\"»“«]")
_SQLITE_TABLE: Final = re.compile(rf"^no such table: ({_NAME})$")
_SQLITE_COLUMN: Final = re.compile(rf"^(?:no such column: |table .* has no column named )({_NAME})$")


def original_of(error: BaseException) -> BaseException | None:
    """Return the driver's error inside SQLAlchemy's; any other error itself."""
    return error.orig if isinstance(error, DBAPIError) else error


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error of psycopg, psycopg2 or asyncpg; None for errors of other drivers.

    None also for an error that the client library raised, such as a lost connection.
    """
    original = original_of(error)
    if original is None or (original.args and isinstance(original.args[0], int)):
        return None  # MySQL's drivers put the number first; one of them knows a SQLSTATE too, with other meanings
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return state if isinstance(state, str) and _SQLSTATE.fullmatch(state) else None


def number_of(error: BaseException) -> int | None:
    """Return the error number of the server or the client library, for every driver."""
    original = original_of(error)
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorcode", None)
    number = original.args[0] if original is not None and original.args else None
    # bool is an int to Python, and some errors carry an exception as their first argument.
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def driver_code_of(error: BaseException) -> int | str | None:
    """Return the SQLSTATE of an error on PostgreSQL, else its number."""
    return sqlstate_of(error) or number_of(error)


def describe_missing_object(error: BaseException, *, own_statement: bool) -> str | None:
    """Return a sentence about the missing table or column; None if the error is about something else.

    Args:
        error: The driver's error, or SQLAlchemy's around it.
        own_statement: conquiet built the statement, so what the server calls a column is one.
    """
    original = original_of(error)
    message = str(original.args[-1]) if original is not None and original.args else ""
    if isinstance(original, sqlite3.Error):
        table, column = _SQLITE_TABLE.match(message), _SQLITE_COLUMN.match(message)
    else:
        code = driver_code_of(error)
        quoted = _POSTGRES_QUOTED if isinstance(code, str) else _QUOTED
        table = quoted.match(message) if code in _NO_SUCH_TABLE else None
        column = quoted.match(message) if code in _NO_SUCH_COLUMN else None
    if table is not None:
        return f"there is no table {table[1]}; create it, or check the name and the schema that the engine connects to"
    if column is not None and own_statement:
        return f"the table has no column {column[1]}; add it, or check the name"
    return None
