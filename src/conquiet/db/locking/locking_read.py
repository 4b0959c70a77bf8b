"""A locking read: returns the newest state, even if the snapshot of its transaction is older."""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import TextClause
from sqlalchemy.engine import Connection

from conquiet.db import lock_holder
from conquiet.db.connection_cleanup import invalidate
from conquiet.db.errors import DbErrorKind, fault_of, outcome_unknown
from conquiet.db.statement_execution import StatementResult, execute


def lock_rows(conn: Connection, statement: TextClause, params: Mapping[str, Any], table: str) -> StatementResult:
    """Run a locking read; raise ``LockTimeoutError`` if the wait timed out.

    If an exception interrupts the wait (Ctrl-C, a time limit by signal), the connection is closed: releasing another
    lock on it would wait for this one first.
    """
    started = time.monotonic()
    try:
        return execute(conn, statement, params)
    except BaseException as error:
        if outcome_unknown(error):
            invalidate(conn)
        if fault_of(error) is not DbErrorKind.LOCK_TIMEOUT:
            raise
        waited = time.monotonic() - started
        holder = lock_holder.row_holder(conn, table)
        what = f"the row lock on {table}"
        raise lock_holder.timeout_error(
            what, f"{waited:.1f}", resource=table, waited_s=waited, holder=holder
        ) from error
