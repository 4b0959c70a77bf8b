"""A locking read: sees the newest state, whatever snapshot its transaction has."""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import TextClause
from sqlalchemy.engine import Connection

from conquiet.db import diagnosis
from conquiet.db.faults import Fault, fault_of
from conquiet.db.running import Answer, run
from conquiet.errors import LockTimeoutError


def lock_rows(conn: Connection, statement: TextClause, params: Mapping[str, Any], table: str) -> Answer:
    """Run a locking read; a wait that ran out becomes ``LockTimeoutError``."""
    started = time.monotonic()
    try:
        return run(conn, statement, params)
    except Exception as error:
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
