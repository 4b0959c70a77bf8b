"""Exactly one transaction.

    with DbSession(engine) as session:        a connection is taken, a transaction begins
        session.execute(...)
                                              leaving: before_commit checks, COMMIT, locks are given back
                                              leaving by an exception: ROLLBACK, locks are given back

A session lives once. There is no second attempt inside one: a transaction that met a conflict has a
snapshot that will never show the other's write, and after a deadlock the server has rolled it back
already, so a statement "after" it would be a new transaction without the first half. ``retry_on_conflict``
opens a new session for each attempt.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Connection, CursorResult, Engine, RowMapping
from sqlalchemy.exc import SQLAlchemyError

from conquiet.db.dialects import is_mysql, require_supported
from conquiet.db.faults import About, Fault, as_write_error, fault_of, reply_missing
from conquiet.errors import ConfigurationError, DbWriteError, LifecycleError
from conquiet.kernel.lifecycle import Lifecycle

Params = Mapping[str, Any]

_ABOUT = About("the session's transaction")
_DOOMING = frozenset({Fault.CONFLICT, Fault.LOCK_TIMEOUT, Fault.GONE})


class DbSession:
    """One connection and one transaction, from entering to leaving the ``with`` block.

    Raises ``DbWriteError`` (``ConflictError``, ``CommitUnknownError``) for whatever the database says.
    Entering twice, or using it outside the block, is a ``LifecycleError``.

    Args:
        engine: For MySQL, MariaDB or SQLite; not in AUTOCOMMIT mode. It is not closed here.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = require_supported(engine)
        self._life = Lifecycle("this DbSession")
        self._conn: Connection | None = None
        self._before_commit: list[Callable[[DbSession], None]] = []
        self._after_end: list[Callable[[Connection], None]] = []
        self._doomed: DbWriteError | None = None
        self._spoiled = False

    # ------------------------------------------------------------------ the block
    def __enter__(self) -> Self:
        self._life.start()
        try:
            self._conn = self._engine.connect()
        except Exception as error:
            self._life.finish()
            raise as_write_error(error, About("opening a session")) from error
        try:
            self._refuse_autocommit(self._conn)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        conn = self._conn
        if conn is None:
            raise LifecycleError("this DbSession was never entered")
        try:
            if error is None:
                self._commit(conn)
            else:
                self._roll_back(conn, error)
        except BaseException as failure:
            self._roll_back(conn, failure)
            raise
        finally:
            self._end()

    def _commit(self, conn: Connection) -> None:
        self._refuse_doomed()
        for check in self._before_commit:
            check(self)
        self._refuse_doomed()
        try:
            conn.commit()
        except Exception as error:
            self.broken_off(error)
            raise as_write_error(error, _ABOUT, committing=True) from error

    def _refuse_doomed(self) -> None:
        # Somebody caught the error inside the block and went on. Committing would keep the half that
        # came after it, so the error is raised again instead.
        if self._doomed is not None:
            raise self._doomed

    def _end(self) -> None:
        """Give back locks, then the connection. After COMMIT: who gets a lock next must see what we wrote."""
        conn, self._conn = self._conn, None
        self._life.finish()
        if conn is None:
            return
        try:
            for release in reversed(self._after_end):
                release(conn)
        except BaseException:
            conn.invalidate()
            raise
        finally:
            conn.close()

    # ------------------------------------------------------------------ statements
    def execute(self, sql: str | TextClause, params: Params | Sequence[Params] | None = None) -> int:
        r"""Run a statement and return its row count: for an UPDATE the rows it matched.

        A string is ``sqlalchemy.text``: ``:name`` is a bind, ``\:`` a colon. A list of parameters
        runs it once for each.
        """
        return self._run(sql, params).rowcount

    def execute_scalar(self, sql: str | TextClause, params: Params | None = None) -> Any:
        """Return the first column of the first row, or None."""
        return self._run(sql, params).scalar()

    def fetch_one(self, sql: str | TextClause, params: Params | None = None) -> dict[str, Any] | None:
        """Return the one row there is, or None. Two are a ``DbWriteError``: one answer was expected."""
        rows = self._run(sql, params).mappings().fetchmany(2)
        if len(rows) > 1:
            raise DbWriteError("fetch_one found more than one row; narrow the condition or use fetch_all")
        return _as_dict(rows[0]) if rows else None

    def fetch_all(self, sql: str | TextClause, params: Params | None = None) -> list[dict[str, Any]]:
        """Return all rows."""
        result = self._run(sql, params)
        names = list(map(str, result.keys()))
        return [dict(zip(names, row, strict=True)) for row in result.all()]

    def _run(self, sql: str | TextClause, params: Params | Sequence[Params] | None) -> CursorResult[Any]:
        conn = self._connection()
        try:
            return conn.execute(text(sql) if isinstance(sql, str) else sql, params)
        except SQLAlchemyError as error:
            raise self.met(error, About("a statement of the session")) from error
        except Exception as error:
            self.broken_off(error)
            raise

    # ------------------------------------------------------------------ seams
    @property
    def engine(self) -> Engine:
        """The engine this session was opened on."""
        return self._engine

    @property
    def connection(self) -> Connection:
        """The connection, for locks and other statements of the same transaction. Leave COMMIT to the session."""
        return self._connection()

    def before_commit(self, check: Callable[["DbSession"], None]) -> None:
        """Run ``check(session)`` right before COMMIT, inside the transaction; if it raises, that rolls back."""
        self._connection()
        self._before_commit.append(check)

    def after_end(self, release: Callable[[Connection], None]) -> None:
        """Run ``release(connection)`` after COMMIT or ROLLBACK, before the connection goes back to its pool.

        The last one registered runs first. It should invalidate the connection rather than raise.
        """
        self._connection()
        self._after_end.append(release)

    def doom(self, reason: DbWriteError) -> None:
        """From now on this session can only be rolled back."""
        self._doomed = self._doomed or reason

    def met(self, error: SQLAlchemyError, about: About) -> DbWriteError:
        """Return our error for one of the database's; if it has ended the transaction, so has the session."""
        translated = as_write_error(error, about)
        self.broken_off(error)
        if fault_of(error) in _DOOMING:
            self.doom(translated)
        return translated

    def broken_off(self, error: Exception) -> None:
        """End the session and its connection if this error came in place of a reply, which may still be on its way."""
        if is_mysql(self._engine) and reply_missing(error):
            self._spoiled = True
            self.doom(as_write_error(error, About("a statement of the session")))

    def _connection(self) -> Connection:
        if self._conn is None:
            raise LifecycleError(f"this DbSession is {self._life.status.value}: use it inside its own with block, once")
        if self._doomed is not None:
            raise LifecycleError(
                "the transaction of this DbSession met a conflict or lost its connection, so nothing more can be done "
                "in it; leave the block and try again in a new session"
            ) from self._doomed
        return self._conn

    def _roll_back(self, conn: Connection, error: BaseException) -> None:
        """ROLLBACK, or close the connection. Does not raise: ``error`` is what there is to report."""
        # After an interrupt a reply may still be on its way; the next user would take it for theirs.
        if self._spoiled or not isinstance(error, Exception):
            conn.invalidate()
            return
        try:
            conn.rollback()
        except Exception:  # noqa: BLE001 - the server rolls back when the connection ends
            conn.invalidate()

    def _refuse_autocommit(self, conn: Connection) -> None:
        """A transaction is what a session is. In autocommit mode there would be none, and nobody would notice."""
        raw: Any = conn.connection.dbapi_connection
        if raw.get_autocommit() if is_mysql(self._engine) else raw.isolation_level is None:
            raise ConfigurationError("DbSession needs transactions, and this engine is in AUTOCOMMIT mode")


def _as_dict(row: RowMapping) -> dict[str, Any]:
    return {str(column): value for column, value in row.items()}
