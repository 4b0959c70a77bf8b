"""A locking read: sees the newest state, whatever snapshot its transaction has."""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import TextClause
from sqlalchemy.engine import Connection

from conquiet.db import diagnosis
from conquiet.db.faults import Fault, fault_of, reply_missing
from conquiet.db.running import Answer, run
from conquiet.errors import LockTimeoutError


def lock_rows(conn: Connection, statement: TextClause, params: Mapping[str, Any], table: str) -> Answer:
    """Run a locking read; a wait that ran out becomes ``LockTimeoutError``.

    If something strikes during the wait (Ctrl-C, a time limit by signal), the connection is closed. Giving another
    lock back on it would mean to wait for this one first.
    """
    started = time.monotonic()
    try:
        return run(conn, statement, params)
    except BaseException as error:
        if reply_missing(error):
            conn.invalidate()
        if fault_of(error) is not Fault.LOCK_TIMEOUT:
            raise
        waited = time.monotonic() - started
        holder = diagnosis.row_holder(conn, table)
        raise LockTimeoutError(
            f"the row lock on {table} was not had within {waited:.1f} s{diagnosis.said(holder)}; nothing was written",
            resource=table,
            waited_s=waited,
            holder=holder,
        ) from error
