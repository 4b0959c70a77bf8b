"""A lock by name: GET_LOCK and RELEASE_LOCK. It works for rows that do not exist yet."""

import math
import time
from typing import Final

from sqlalchemy import text
from sqlalchemy.engine import Connection

from conquiet.core.log import FactLogger
from conquiet.core.validation import require_seconds, require_text
from conquiet.db import lock_holder
from conquiet.db.connection_cleanup import invalidate
from conquiet.db.locking.base import LockBackend
from conquiet.db.locking.naming import row_lock_name
from conquiet.db.models import DbOperation
from conquiet.db.statement_execution import execute
from conquiet.errors import LockAcquisitionError

logger = FactLogger(__name__)

_GET: Final = text("SELECT GET_LOCK(:lock_name, :timeout)")
_RELEASE: Final = text("SELECT RELEASE_LOCK(:lock_name)")


class MySQLAdvisoryLockBackend(LockBackend):
    """Lock the pair of table and id, server-wide, against all users of the same name. SPEC(003 §5.4).

    Args:
        lock_timeout: Longest wait in seconds. MySQL has whole seconds only, so a fraction is rounded up there.
        prefix: Beginning of the lock names. Writers that must exclude each other share it.
    """

    outlives_commit = True

    def __init__(self, lock_timeout: float = 10, prefix: str = "conquiet_lock") -> None:
        require_seconds("lock_timeout", lock_timeout)
        self.lock_timeout = lock_timeout
        self.prefix = require_text("prefix", prefix)

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        """Wait for the lock, at most ``lock_timeout`` seconds."""
        get_lock(conn, self._lock_name(conn, op), self.lock_timeout, what=f"the advisory lock of a row of {op.table}")

    def release(self, conn: Connection, op: DbOperation) -> None:
        """Release the lock, or close the connection that holds it."""
        release_lock(conn, self._lock_name(conn, op))

    def _lock_name(self, conn: Connection, op: DbOperation) -> str:
        return row_lock_name(self.prefix, op.table, op.id_value, default_schema=conn.engine.url.database)


def get_lock(conn: Connection, name: str, timeout_s: float, *, what: str) -> None:
    """Take the advisory lock ``name`` on this connection."""
    if not getattr(conn.dialect, "is_mariadb", False):
        timeout_s = math.ceil(timeout_s)  # MySQL rounds, and would not wait for 0.3
    started = time.monotonic()
    granted = execute(conn, _GET, {"lock_name": name, "timeout": timeout_s}).scalar()
    # 1 is the only success. MariaDB returns NULL if the wait was killed or failed.
    if granted == 1:
        return
    waited = time.monotonic() - started
    if granted is None:
        raise LockAcquisitionError(
            f"{what} could not be acquired: the server ended the wait (killed, or out of memory); nothing was written",
            resource=name,
            waited_s=waited,
        )
    holder = lock_holder.advisory_holder(conn, name)
    raise lock_holder.timeout_error(what, f"{timeout_s:g}", resource=name, waited_s=waited, holder=holder)


def release_lock(conn: Connection, name: str) -> None:
    """Release one hold of the advisory lock ``name``, or close the connection that has it."""
    if conn.invalidated or conn.closed:
        return  # the server has freed it with the connection
    try:
        released = execute(conn, _RELEASE, {"lock_name": name}).scalar()
    except Exception:  # noqa: BLE001 - after any error the lock is still held
        released = None
    except BaseException:
        invalidate(conn)
        raise
    # A lock left on a pooled connection blocks all others until the pool closes that connection.
    # ROLLBACK does not free it; closing the connection does.
    if released != 1:
        logger.warning("advisory lock not released; its connection is closed", lock_name=name)
        invalidate(conn)
