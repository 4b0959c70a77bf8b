"""A lock on the whole table: LOCK TABLES ... WRITE."""

import math
import time
from typing import Final

from sqlalchemy import text
from sqlalchemy.engine import Connection

from conquiet.core.log import FactLogger
from conquiet.core.validation import require_seconds
from conquiet.db import lock_holder, sql
from conquiet.db.connection_cleanup import invalidate
from conquiet.db.errors import DbErrorKind, fault_of
from conquiet.db.locking.base import LockBackend
from conquiet.db.models import DbOperation
from conquiet.db.statement_execution import execute

logger = FactLogger(__name__)

_UNLOCK: Final = text("UNLOCK TABLES")
_SET_WAIT: Final = text("SET SESSION lock_wait_timeout = :timeout")
_WAIT_KEY: Final = "conquiet_lock_wait_timeout"


class MySQLTableLockBackend(LockBackend):
    """Exclude all other connections from the table, readers too. SPEC(003 §5.6).

    LOCK TABLES and UNLOCK TABLES both commit, so the connection must not be in autocommit mode and
    the order is: LOCK, work, COMMIT, UNLOCK. While the lock is held, this connection reaches no other table.

    Args:
        lock_timeout_s: Longest wait; a fraction is rounded up, because servers have whole seconds only. Set as
            ``lock_wait_timeout`` on the connection, where it stays: MariaDB's default is a day.
    """

    def __init__(self, lock_timeout_s: float = 10) -> None:
        self.lock_timeout_s = require_seconds("lock_timeout_s", lock_timeout_s)

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        """Wait until no other connection uses the table, at most ``lock_timeout_s``."""
        # Once per connection, not once per lock: a round trip saved.
        wait_s = math.ceil(self.lock_timeout_s)
        if conn.info.get(_WAIT_KEY) != wait_s:
            execute(conn, _SET_WAIT, {"timeout": wait_s})
            conn.info[_WAIT_KEY] = wait_s
        started = time.monotonic()
        try:
            execute(conn, sql.lock_table(op.table))
        except Exception as error:
            if fault_of(error) is not DbErrorKind.LOCK_TIMEOUT:
                raise
            waited = time.monotonic() - started
            holder = lock_holder.table_holder(conn, op.table)
            what = f"the lock on table {op.table}"
            raise lock_holder.timeout_error(
                what, str(wait_s), resource=op.table, waited_s=waited, holder=holder
            ) from error

    def release(self, conn: Connection, op: DbOperation) -> None:
        """Unlock the table, or close the connection that locks it."""
        if conn.invalidated or conn.closed:
            return
        try:
            execute(conn, _UNLOCK)
        except Exception:  # noqa: BLE001 - after any error the table is still locked
            logger.warning("table not unlocked; its connection is closed", table=op.table)
            invalidate(conn)
        except BaseException:
            invalidate(conn)
            raise
