"""Read PostgreSQL's errors: five characters (SQLSTATE) that mean the same in every version and language. Pure."""

import re
from typing import Final

from sqlalchemy.exc import DBAPIError

NO_SUCH_TABLE: Final = "42P01"
NO_SUCH_COLUMN: Final = "42703"
FAILED_TRANSACTION: Final = "25P02"
"""An earlier statement of the transaction failed; PostgreSQL accepts only ROLLBACK, and makes one of COMMIT."""

_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error of psycopg, psycopg2 or asyncpg; None for errors of other drivers.

    None also for an error that the client library raised, such as a lost connection.
    """
    original = error.orig if isinstance(error, DBAPIError) else error
    if original is None or (original.args and isinstance(original.args[0], int)):
        return None  # MySQL's drivers put the number first; one of them knows a SQLSTATE too, with other meanings
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return state if isinstance(state, str) and _SQLSTATE.fullmatch(state) else None
