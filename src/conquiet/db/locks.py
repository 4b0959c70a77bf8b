"""Locks inside a session. Both are held until after its commit; neither can be released before."""

from collections.abc import Mapping
from typing import Any, Self

from sqlalchemy.exc import SQLAlchemyError

from conquiet.core.redaction import printable
from conquiet.core.validation import require_identifier, require_seconds, require_table, require_text
from conquiet.db import sql
from conquiet.db.dialects import require_mysql_locks
from conquiet.db.errors import OperationInfo
from conquiet.db.locking.advisory_mysql import get_lock, release_lock
from conquiet.db.locking.locking_read import lock_rows
from conquiet.db.locking.naming import lock_name
from conquiet.db.locking.strategy import LockStrategy
from conquiet.db.metrics import measured_lock
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, ConflictError, LockTimeoutError, NoSuchRowError

_PREFIX = "conquiet_key"


class AdvisoryLock:
    """A lock by name, server-wide, for the rest of the session.

    Take it before the first read: an earlier read may be stale. Leaving its ``with`` block does not release it. The end
    of the session does, after COMMIT or ROLLBACK.

    Args:
        session: An open session.
        key: Any text. Only sessions that use the same key are excluded.
        timeout_s: Longest wait; 0 does not wait. MySQL has whole seconds only, so a fraction is rounded up there.
    """

    def __init__(self, session: DbSession, key: str, timeout_s: float = 10) -> None:
        require_mysql_locks(session.engine, "AdvisoryLock")
        self._session = session
        self._key = require_text("key", key)
        self._timeout_s = require_seconds("timeout_s", timeout_s, zero_allowed=True)
        self._name = lock_name(_PREFIX, printable(key, limit=len(key)))

    def acquire(self) -> None:
        """Wait for the lock; ``LockTimeoutError`` if it could not be acquired in time.

        The session may continue without it. It may not after a deadlock of such locks, which is a ``ConflictError``.
        """
        conn = self._session.connection
        try:
            with measured_lock(LockStrategy.ADVISORY):
                get_lock(conn, self._name, self._timeout_s, what=f"the advisory lock {printable(self._key)!r}")
        except SQLAlchemyError as error:
            raise self._session.translate(error, OperationInfo("taking an advisory lock")) from error
        except Exception as error:
            self._session.on_lost_reply(error)  # the server may have granted the lock
            raise
        self._session.on_close(lambda connection: release_lock(connection, self._name))

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, _kind: object, _error: BaseException | None, _trace: object) -> None:
        """Keep the lock: its write is not committed yet."""


class RowLock:
    """Lock the rows that meet a condition, for the rest of the session (SELECT ... FOR UPDATE).

    Args:
        session: An open session.
        table: ``table`` or ``schema.table``.
        where: Column to value; all must be equal, and None means NULL. Columns without an index lock far more rows.
        nowait: Raise ``LockTimeoutError`` for a locked row instead of waiting.
        skip_locked: Leave locked rows out.
    """

    def __init__(
        self,
        session: DbSession,
        table: str,
        where: Mapping[str, Any],
        *,
        nowait: bool = False,
        skip_locked: bool = False,
    ) -> None:
        require_mysql_locks(session.engine, "RowLock")
        self._session = session
        self._table = require_table("table", table)
        if not where:
            raise ConfigurationError(
                "where must name at least one column: an empty condition would lock the whole table"
            )
        if nowait and skip_locked:
            raise ConfigurationError("nowait and skip_locked exclude each other")
        columns = tuple(require_identifier("a column of where", column) for column in where)
        suffix = sql.FOR_UPDATE + (" NOWAIT" if nowait else " SKIP LOCKED" if skip_locked else "")
        nulls = frozenset(column for column in columns if where[column] is None)
        self._statement = sql.select_where(table, columns, nulls, suffix)
        self._params = sql.conditions(list(where.values()))
        self._skip_locked = skip_locked

    def acquire(self) -> list[dict[str, Any]]:
        """Lock the rows and return their newest state, even if the session's snapshot is older.

        Raises:
            NoSuchRowError: There is none. Nothing is locked then, not even against an INSERT. With
                ``skip_locked`` an empty list is returned instead: it does not show whether rows are missing or locked.
            LockTimeoutError: Another transaction held one of them for too long. The session can only be rolled
                back: the server may have done so already.
        """
        conn = self._session.connection
        try:
            with measured_lock(LockStrategy.ROW):
                rows = lock_rows(conn, self._statement, self._params, self._table).all()
        except LockTimeoutError:
            self._session.mark_failed(
                ConflictError(f"a row of {self._table} was locked for too long", table=self._table)
            )
            raise
        except SQLAlchemyError as error:
            failure = self._session.translate(error, OperationInfo("locking rows", self._table))
            self._session.mark_failed(failure)
            raise failure from error
        except Exception as error:
            self._session.on_lost_reply(error)
            raise
        if not rows and not self._skip_locked:
            raise NoSuchRowError(f"there is no such row in {self._table}, so it cannot be locked", resource=self._table)
        return rows
