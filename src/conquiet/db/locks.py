"""Locks inside a session. Both live until after its commit; neither can be given back before."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from sqlalchemy.exc import SQLAlchemyError

from conquiet.db import sql
from conquiet.db.dialects import require_mysql_locks
from conquiet.db.faults import About
from conquiet.db.locking.advisory_mysql import get_lock, release_lock
from conquiet.db.locking.naming import lock_name
from conquiet.db.locking.reading import lock_rows
from conquiet.db.locking.strategy import LockStrategy
from conquiet.db.metrics import observe_lock_acquisition
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, ConflictError, LockTimeoutError, NoSuchRowError
from conquiet.kernel.redaction import printable
from conquiet.kernel.validation import require_identifier, require_seconds, require_table, require_text

_PREFIX = "conquiet_key"


class AdvisoryLock:
    """A lock by name, server-wide, for the rest of the session.

    Take it before the first read: what was read before may be stale. Leaving a ``with`` block of its
    own does not give it back, the end of the session does, after COMMIT or ROLLBACK.

    Args:
        session: An open session.
        key: What is locked, any text. Only who uses the same key is shut out.
        timeout: Seconds to wait; 0 does not wait. MySQL knows whole seconds only, so a fraction is rounded up there.
    """

    def __init__(self, session: DbSession, key: str, timeout: float = 10) -> None:
        require_mysql_locks(session.engine, "AdvisoryLock")
        self._session = session
        self._key = require_text("key", key)
        self._timeout_s = require_seconds("timeout", timeout, zero_allowed=True)
        self._name = lock_name(_PREFIX, printable(key, limit=len(key)))

    def acquire(self) -> None:
        """Wait for the lock; ``LockTimeoutError`` if it is not had in time.

        The session may go on without it. Not so after a deadlock of such locks, which is a ``ConflictError``.
        """
        conn = self._session.connection
        started, had = time.monotonic(), False
        try:
            get_lock(conn, self._name, self._timeout_s, what=f"the advisory lock {printable(self._key)!r}")
            had = True
        except SQLAlchemyError as error:
            raise self._session.met(error, About("taking an advisory lock")) from error
        except Exception as error:
            self._session.broken_off(error)  # the lock may be ours by now
            raise
        finally:
            observe_lock_acquisition(LockStrategy.ADVISORY.value, time.monotonic() - started, had)
        self._session.after_end(lambda connection: release_lock(connection, self._name))

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the lock: its write is not committed yet."""


class RowLock:
    """Locks the rows that meet a condition, for the rest of the session (SELECT ... FOR UPDATE).

    Args:
        session: An open session.
        table: ``table`` or ``schema.table``.
        where: Column to value; all must be equal, and None means NULL. Columns without an index lock far more rows.
        nowait: Do not wait for a locked row: ``LockTimeoutError`` at once.
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
        """Lock the rows and return them as they are now, not as the session's snapshot has them.

        Raises:
            NoSuchRowError: There is none. Nothing is locked then, not even against an INSERT. With
                ``skip_locked`` an empty list comes back instead: missing and locked look alike.
            LockTimeoutError: Somebody else held one of them for too long. The session is over: the
                server may have rolled it back.
        """
        conn = self._session.connection
        started, had = time.monotonic(), False
        try:
            found = lock_rows(conn, self._statement, self._params, self._table)
            rows = found.all()
            had = True
        except LockTimeoutError:
            self._session.doom(ConflictError(f"a row of {self._table} was locked for too long", table=self._table))
            raise
        except SQLAlchemyError as error:
            translated = self._session.met(error, About("locking rows", self._table))
            self._session.doom(translated)
            raise translated from error
        except Exception as error:
            self._session.broken_off(error)
            raise
        finally:
            observe_lock_acquisition(LockStrategy.ROW.value, time.monotonic() - started, had)
        if not rows and not self._skip_locked:
            raise NoSuchRowError(f"there is no such row in {self._table}, so it cannot be locked", resource=self._table)
        return rows
