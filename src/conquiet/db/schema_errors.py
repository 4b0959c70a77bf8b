"""Name the table or column that a statement needs and the database does not have.

Names come from the code of the application and are not secret, but the server's text is not repeated: only an
identifier is taken out of it. The name of a column is taken only where conquiet built the statement. In a statement of
the caller an unknown "column" may be a value that was pasted into the SQL without quotes.
"""

import re
import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError

from conquiet.db import sqlstate

NO_SUCH_TABLE: Final = 1146
NO_SUCH_COLUMN: Final = 1054

_NAME: Final = r"[A-Za-z0-9_$]+(?:[.-][A-Za-z0-9_$]+)*"
# The name is the first quoted text of the server's message, in every language (lc_messages).
_QUOTED: Final = re.compile(rf"^[^']*'({_NAME})'")
# PostgreSQL quotes by its language: "orders", „orders", « orders ».
_POSTGRES_QUOTED: Final = re.compile(rf"^[^\"«„»]*[\"«„»] ?({_NAME}) ?[\"»“«]")
_SQLITE_TABLE: Final = re.compile(rf"^no such table: ({_NAME})$")
_SQLITE_COLUMN: Final = re.compile(rf"^(?:no such column: |table .* has no column named )({_NAME})$")


def describe_missing_object(
    error: BaseException, number: int | None, state: str | None = None, *, own_statement: bool
) -> str | None:
    """Return a sentence about the missing table or column; None if the error is about something else.

    Args:
        error: The driver's error, or SQLAlchemy's around it.
        number: Its number.
        state: Its SQLSTATE, on PostgreSQL.
        own_statement: conquiet built the statement, so what the server calls a column is one.
    """
    original = error.orig if isinstance(error, DBAPIError) else error
    message = str(original.args[-1]) if original is not None and original.args else ""
    if isinstance(original, sqlite3.Error):
        table, column = _SQLITE_TABLE.match(message), _SQLITE_COLUMN.match(message)
    elif state is not None:
        table = _POSTGRES_QUOTED.match(message) if state == sqlstate.NO_SUCH_TABLE else None
        column = _POSTGRES_QUOTED.match(message) if state == sqlstate.NO_SUCH_COLUMN else None
    else:
        table = _QUOTED.match(message) if number == NO_SUCH_TABLE else None
        column = _QUOTED.match(message) if number == NO_SUCH_COLUMN else None
    if table is not None:
        return f"there is no table {table[1]}; create it, or check the name and the schema that the engine connects to"
    if column is not None and own_statement:
        return f"the table has no column {column[1]}; add it, or check the name"
    return None
