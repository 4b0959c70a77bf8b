"""A lock by name: GET_LOCK and RELEASE_LOCK. Works for rows that do not exist yet."""

import logging
import math
import time
from typing import Final

from sqlalchemy import text
from sqlalchemy.engine import Connection

from conquiet.db import diagnosis
from conquiet.db.locking.base import LockBackend
from conquiet.db.locking.naming import row_lock_name
from conquiet.db.models import DbOperation
from conquiet.db.running import run
from conquiet.errors import LockAcquisitionError, LockTimeoutError
from conquiet.kernel.validation import require_positive, require_text

logger = logging.getLogger(__name__)

_GET: Final = text("SELECT GET_LOCK(:lock_name, :timeout)")
_RELEASE: Final = text("SELECT RELEASE_LOCK(:lock_name)")


class MySQLAdvisoryLockBackend(LockBackend):
    """Locks the pair of table and id, server-wide, among all who ask for it by this name. SPEC(003 §5.4).

    Args:
        lock_timeout: Seconds to wait.
        prefix: Beginning of the lock names. Writers that are to exclude each other share it.
    """

    outlives_commit = True

    def __init__(self, lock_timeout: int = 10, prefix: str = "conquiet_lock") -> None:
        self.lock_timeout = require_positive("lock_timeout", lock_timeout)
        self.prefix = require_text("prefix", prefix)

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        """Wait for the lock, at most ``lock_timeout`` seconds."""
        get_lock(conn, self._lock_name(conn, op), self.lock_timeout, what=f"the advisory lock of a row of {op.table}")

    def release(self, conn: Connection, op: DbOperation) -> None:
        """Give the lock back, or close the connection that holds it."""
        release_lock(conn, self._lock_name(conn, op))

    def _lock_name(self, conn: Connection, op: DbOperation) -> str:
        return row_lock_name(self.prefix, op.table, op.id_value, default_schema=conn.engine.url.database)


def get_lock(conn: Connection, name: str, timeout_s: float, *, what: str) -> None:
    """Take the advisory lock ``name`` on this connection."""
    if not getattr(conn.dialect, "is_mariadb", False):
        timeout_s = math.ceil(timeout_s)  # MySQL rounds, and would not wait at all for 0.3
    started = time.monotonic()
    answer = run(conn, _GET, {"lock_name": name, "timeout": timeout_s}).scalar()
    # 1 is the only success. MariaDB answers NULL when the wait was killed or ran into an error.
    if answer == 1:
        return
    waited = time.monotonic() - started
    if answer is None:
        raise LockAcquisitionError(
            f"{what} was not had: the server gave up the wait (killed, or out of memory); nothing was written",
            resource=name,
            waited_s=waited,
        )
    holder = diagnosis.advisory_holder(conn, name)
    raise LockTimeoutError(
        f"{what} was not had within {timeout_s:g} s{diagnosis.said(holder)}; nothing was written",
        resource=name,
        waited_s=waited,
        holder=holder,
    )


def release_lock(conn: Connection, name: str) -> None:
    """Give one hold of the advisory lock ``name`` back, or close the connection that has it."""
    if conn.invalidated or conn.closed:
        return  # the server has freed it with the connection
    try:
        answer = run(conn, _RELEASE, {"lock_name": name}).scalar()
    except Exception:  # noqa: BLE001 - whatever it is: the lock was not given back
        answer = None
    except BaseException:
        conn.invalidate()
        raise
    # A lock that stays behind on a pooled connection blocks everybody until the pool lets go of it.
    # ROLLBACK does not free it; closing the connection does.
    if answer != 1:
        logger.warning("advisory lock not given back; its connection is closed", extra={"lock_name": name})
        conn.invalidate()
