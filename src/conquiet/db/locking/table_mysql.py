"""A lock on the whole table: LOCK TABLES ... WRITE."""

import logging
import time
from typing import Final

from sqlalchemy import text
from sqlalchemy.engine import Connection

from conquiet.db import diagnosis, sql
from conquiet.db.faults import Fault, fault_of
from conquiet.db.locking.base import LockBackend
from conquiet.db.models import DbOperation
from conquiet.db.running import run
from conquiet.errors import LockTimeoutError
from conquiet.kernel.validation import require_positive

logger = logging.getLogger(__name__)

_UNLOCK: Final = text("UNLOCK TABLES")
_SET_WAIT: Final = text("SET SESSION lock_wait_timeout = :timeout")
_WAIT_KEY: Final = "conquiet_lock_wait_timeout"


class MySQLTableLockBackend(LockBackend):
    """Shuts everybody else out of the table, readers too. SPEC(003 §5.6).

    LOCK TABLES and UNLOCK TABLES both commit, so the connection must not be in autocommit mode and
    the order is: LOCK, work, COMMIT, UNLOCK. While it holds, this connection reaches no other table.

    Args:
        lock_timeout: Seconds to wait. Set as ``lock_wait_timeout`` on the connection, where it
            stays: MariaDB would otherwise wait for a day.
    """

    def __init__(self, lock_timeout: int = 10) -> None:
        self.lock_timeout = require_positive("lock_timeout", lock_timeout)

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        """Wait for everybody who uses the table to be done, at most ``lock_timeout`` seconds."""
        # Once per connection, not once per lock: a round trip saved.
        if conn.info.get(_WAIT_KEY) != self.lock_timeout:
            run(conn, _SET_WAIT, {"timeout": self.lock_timeout})
            conn.info[_WAIT_KEY] = self.lock_timeout
        started = time.monotonic()
        try:
            run(conn, sql.lock_table(op.table))
        except Exception as error:
            if fault_of(error) is not Fault.LOCK_TIMEOUT:
                raise
            holder = diagnosis.table_holder(conn, op.table)
            raise LockTimeoutError(
                f"the lock on table {op.table} was not had within {self.lock_timeout} s{diagnosis.said(holder)}; "
                "nothing was written",
                resource=op.table,
                waited_s=time.monotonic() - started,
                holder=holder,
            ) from error

    def release(self, conn: Connection, op: DbOperation) -> None:
        """Let the others in again, or close the connection that shuts them out."""
        if conn.invalidated or conn.closed:
            return
        try:
            run(conn, _UNLOCK)
        except Exception:  # noqa: BLE001 - whatever it is: the others are still shut out
            logger.warning("table not unlocked; its connection is closed", extra={"table": op.table})
            conn.invalidate()
        except BaseException:
            conn.invalidate()
            raise
