"""Exactly one transaction. See docs/decisions/0005 and 0006.

    with DbSession(engine) as session:        check out a connection, begin a transaction
        session.execute(...)
                                              end of the block: before_commit checks, COMMIT, release locks
                                              exception: ROLLBACK, release locks

A session is used once. There is no second attempt inside one: after a conflict the snapshot of the transaction never
shows the other write, and after a deadlock the server has rolled it back already, so a further statement would be a
new transaction without the first half. ``retry_on_conflict`` opens a new session for each attempt.

The transaction begins on entering, so an ORM session on ``session.connection`` joins it: SQLAlchemy's default
(``join_transaction_mode="conditional_savepoint"``) then leaves COMMIT to the ``DbSession``. If other code ends the
transaction, the session refuses to continue and to commit.

On PostgreSQL a lost reply to COMMIT is resolved: the session queries the status of the transaction, and ends as if the
reply had arrived (``commit_status``). That costs one statement before each COMMIT, unless an inbox row has returned the
id already.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Self

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Connection, CursorResult, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from conquiet.core.functions import reject_awaitable
from conquiet.core.lifecycle import Lifecycle
from conquiet.db.commit_status import (
    TransactionId,
    after_lost_reply,
    current_transaction,
    record_transaction,
    resolve_commit,
)
from conquiet.db.connection_cleanup import clean_up, invalidate
from conquiet.db.dialects import is_mysql, is_postgres, require_supported
from conquiet.db.driver_errors import FAILED_TRANSACTION
from conquiet.db.errors import (
    ENDS_TRANSACTION,
    OperationInfo,
    as_write_error,
    fault_of,
    is_transient,
    outcome_unknown,
)
from conquiet.db.failover import is_demotion, renew_pool
from conquiet.db.session_metrics import OTHER, SESSION, WRITES, WriteCounts, first_keyword
from conquiet.db.transaction_guard import ENDED, TransactionGuard
from conquiet.errors import (
    CommitUnknownError,
    ConfigurationError,
    DbWriteError,
    LifecycleError,
)

Params = Mapping[str, Any]

_TRANSACTION = OperationInfo("the session's transaction")
_STATEMENT = OperationInfo("a statement of the session")
_TO_SAVEPOINT = re.compile(r"\bTO\b", re.IGNORECASE)
_PREPARE = re.compile(r"\W*PREPARE\s+TRANSACTION\b", re.IGNORECASE)


class DbSession:
    """One connection and one transaction, from entering to leaving the ``with`` block.

    Raises ``DbWriteError`` (``ConflictError``, ``CommitUnknownError``, ``DatabaseUnavailableError``) for errors of the
    database. Entering twice, using it outside the block, or ending its transaction is a ``LifecycleError``.

    Attributes:
        write_counts: Counts the writes of this session; for the helpers of this package.

    Args:
        engine: For MySQL, MariaDB, PostgreSQL or SQLite; not in AUTOCOMMIT mode. It is not closed here.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = require_supported(engine)
        self._life = Lifecycle("this DbSession")
        self._conn: Connection | None = None
        self._before_commit: list[Callable[[DbSession], None]] = []
        self._on_close: list[Callable[[Connection], None]] = []
        self._failure: DbWriteError | None = None
        self._connection_unusable = False
        self._transaction: RootTransaction | None = None
        self._guard: TransactionGuard | None = None
        self._used = False
        self._statement_failure: DbWriteError | None = None
        self.write_counts = WriteCounts()

    # ------------------------------------------------------------------ the block
    def __enter__(self) -> Self:
        self._life.start()
        try:
            self._conn = self._engine.connect()
        except Exception as error:
            self._life.finish()
            raise as_write_error(error, OperationInfo("opening a session"), connecting=self._engine) from error
        try:
            self._reject_autocommit(self._conn)
            # Sends nothing. An ORM session that joins the connection from now on finds a transaction of other code.
            self._transaction = self._conn.begin()
        except BaseException:
            clean_up(self._close)
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        conn = self._conn
        if conn is None:
            raise LifecycleError("this DbSession was never entered")
        if error is not None:
            clean_up(partial(self._abort, conn, error))
            replacement = self._replacement(error)
            if replacement is not None:
                raise replacement from (replacement.__cause__ or error)
            return
        try:
            self._commit(conn)
        except BaseException as failure:
            clean_up(partial(self._abort, conn, failure))
            raise
        self.write_counts.flush(committed=True)
        clean_up(self._close)

    def _commit(self, conn: Connection) -> None:
        self._reject_failed(conn)
        for check in self._before_commit:
            reject_awaitable("a check of before_commit", check(self))
        self._reject_failed(conn)
        if self._guard is not None:
            self._guard.allow_commit()
        transaction = self._identify(conn) if is_postgres(self._engine) else None
        try:
            conn.commit()
        except Exception as error:
            self.on_lost_reply(error)
            failure = as_write_error(error, _TRANSACTION, committing=True)
            if not is_postgres(self._engine) or not isinstance(failure, CommitUnknownError):
                raise failure from error
            clean_up(conn.invalidate)
            if transaction is None:
                return  # without an id it has written nothing, so it does not matter whether it committed
            resolved = after_lost_reply(resolve_commit(self._engine, transaction), failure)
            if resolved is not None:
                raise resolved from error

    def _identify(self, conn: Connection) -> TransactionId | None:
        """Return the id of PostgreSQL's transaction, to resolve it if the reply to COMMIT is lost."""
        try:
            return current_transaction(conn, _TRANSACTION.operation)
        except SQLAlchemyError as error:
            raise self.translate(error, _TRANSACTION) from error
        except DbWriteError as failed:
            raise self._statement_failure or failed  # noqa: B904 - the failure of the statement has its own cause

    def _reject_failed(self, conn: Connection) -> None:
        # The caller caught the error inside the block and continued. Committing would keep the half that
        # came after it, so the error is raised again.
        if self._failure is not None:
            raise self._failure
        self._reject_ended(conn)

    def _reject_ended(self, conn: Connection) -> None:
        # After a COMMIT that was refused the transaction is still there, and inactive.
        if conn.get_transaction() is not self._transaction or not conn.in_transaction():
            raise LifecycleError(ENDED)

    def _abort(self, conn: Connection, error: BaseException) -> None:
        """ROLLBACK, then close."""
        try:
            self._roll_back(conn, error)
        finally:
            self.write_counts.flush(committed=False)
            self._close()

    def _close(self) -> None:
        """Release locks, then the connection. After COMMIT: the next owner of a lock must see what was written."""
        conn, self._conn = self._conn, None
        self._life.finish()
        if conn is None:
            return
        if self._guard is not None:
            self._guard.is_lifted = True
        try:
            for release in reversed(self._on_close):
                release(conn)
        except BaseException:
            invalidate(conn)
            raise
        finally:
            clean_up(conn.close)

    def _replacement(self, error: BaseException) -> DbWriteError | None:
        """Return the error to raise in place of an error of the block; None to raise it unchanged."""
        if isinstance(error, LifecycleError) and error.__cause__ is not None and error.__cause__ is self._failure:
            return self._failure  # raised by a call after the failure: the caller needs the failure itself
        # Raised by an ORM session or the connection itself.
        origin = error if self._guard is None else self._guard.origin_of(error)
        if not isinstance(origin, DBAPIError) or not is_transient(origin):
            return None
        failure = as_write_error(origin, OperationInfo("a statement in the session's block"))
        failure.__cause__ = origin
        return failure

    # ------------------------------------------------------------------ statements
    def execute(self, sql: str | TextClause, params: Params | Sequence[Params] | None = None) -> int:
        r"""Run a statement and return its row count: for an UPDATE the rows it matched.

        A string is ``sqlalchemy.text``: ``:name`` is a bind, ``\:`` a colon. A list of parameters
        runs it once for each.

        Counted in ``conquiet_db_write_total`` under the table ``(session)``.
        """
        return self._run(sql, params, counted_as=OTHER).rowcount

    def execute_scalar(self, sql: str | TextClause, params: Params | None = None) -> Any:
        """Return the first column of the first row, or None."""
        return self._run(sql, params).scalar()

    def fetch_one(self, sql: str | TextClause, params: Params | None = None) -> dict[str, Any] | None:
        """Return the only row, or None. Two rows are a ``DbWriteError``."""
        rows = self._run(sql, params).mappings().fetchmany(2)
        if len(rows) > 1:
            raise DbWriteError("fetch_one found more than one row; narrow the condition or use fetch_all")
        return {str(column): value for column, value in rows[0].items()} if rows else None

    def fetch_all(self, sql: str | TextClause, params: Params | None = None) -> list[dict[str, Any]]:
        """Return all rows."""
        result = self._run(sql, params)
        names = list(map(str, result.keys()))
        return [dict(zip(names, row, strict=True)) for row in result.all()]

    def send(self, statement: TextClause, params: Params | Sequence[Params] | None, info: OperationInfo) -> int:
        """Run a statement as ``execute`` does; errors name ``info``, and the caller counts it."""
        return self._send(statement, params, info).rowcount

    def _run(
        self, sql: str | TextClause, params: Params | Sequence[Params] | None, *, counted_as: str | None = None
    ) -> CursorResult[Any]:
        """Run a statement; count it if it is a write, or if ``counted_as`` names what else it is."""
        string = sql if isinstance(sql, str) else sql.text
        keyword = first_keyword(string)
        self._reject_end(keyword, string)
        statement = _clause(sql) if isinstance(sql, str) else sql
        op_type = keyword if keyword in WRITES else counted_as
        if op_type is None:
            return self._send(statement, params, _STATEMENT)
        rows = len(params) if params and isinstance(params, list | tuple) else 1
        with self.write_counts.measure(SESSION, op_type, rows=rows):
            return self._send(statement, params, _STATEMENT)

    def _send(
        self, statement: TextClause, params: Params | Sequence[Params] | None, info: OperationInfo
    ) -> CursorResult[Any]:
        conn = self._connection()
        self._used = True
        try:
            return conn.execute(statement, params)
        except SQLAlchemyError as error:
            raise self.translate(error, info) from error
        except Exception as error:
            self.on_lost_reply(error)
            raise

    def _reject_end(self, keyword: str, string: str) -> None:
        """Raise for a statement that would end the transaction; it is not sent."""
        ends = (
            keyword == "commit"
            or (keyword == "rollback" and not _TO_SAVEPOINT.search(string))
            # PostgreSQL's other words for the two, and for leaving the transaction to another session.
            or (keyword in {"end", "abort"} and is_postgres(self._engine))
            or (keyword == "prepare" and _PREPARE.match(string) is not None)
            # They commit what came before them. As the first statement they only set how the transaction begins.
            or (keyword in {"begin", "start"} and self._used)
        )
        if ends:
            raise LifecycleError(
                f"{keyword.upper()} is not allowed in a DbSession, which commits when its block ends and rolls back "
                "when it raises; the statement was not sent"
            )

    # ------------------------------------------------------------------ for locks, helpers and the ORM
    @property
    def engine(self) -> Engine:
        """The engine this session was opened on."""
        return self._engine

    @property
    def connection(self) -> Connection:
        """The connection, for an ORM session, locks and other statements of the same transaction.

        ``Session(bind=session.connection)`` joins the transaction: its ``commit()`` flushes and commits
        nothing, its ``rollback()`` ends this session, which then refuses to continue. Leave COMMIT to this session:
        ``commit()`` of the connection is refused. A conflict on the connection ends the session, even if it is caught.
        """
        conn = self._connection()
        if self._guard is None:
            self._guard = TransactionGuard(conn)
        return conn

    def record_transaction(self, row: Mapping[str, Any]) -> None:
        """Record the id of the transaction, which a statement has returned: COMMIT then needs no query for it."""
        record_transaction(self._connection(), row)

    def before_commit(self, check: Callable[["DbSession"], None]) -> None:
        """Run ``check(session)`` right before COMMIT, inside the transaction; if it raises, roll back."""
        self._connection()
        self._before_commit.append(check)

    @property
    def checks(self) -> int:
        """Number of checks that run right before COMMIT."""
        return len(self._before_commit)

    def drop_checks(self, kept: int) -> None:
        """Drop all but the first checks, after a rollback to a savepoint."""
        del self._before_commit[kept:]

    def on_close(self, release: Callable[[Connection], None]) -> None:
        """Run ``release(connection)`` after COMMIT or ROLLBACK, before the connection returns to its pool.

        The last one registered runs first. It should invalidate the connection rather than raise.
        """
        self._connection()
        self._on_close.append(release)

    def mark_failed(self, reason: DbWriteError) -> None:
        """Allow only a rollback from now on."""
        self._failure = self._failure or reason

    def translate(self, error: SQLAlchemyError, info: OperationInfo) -> DbWriteError:
        """Return the ``DbWriteError`` for an error of the database; mark the session failed if that ended it."""
        failure = as_write_error(error, info)
        if self._statement_failure is None or failure.sqlstate != FAILED_TRANSACTION:
            self._statement_failure = failure
        self.on_lost_reply(error)
        if fault_of(error) in ENDS_TRANSACTION:
            self.mark_failed(failure)
        return failure

    def on_lost_reply(self, error: Exception) -> None:
        """Mark the session failed and its connection unusable if this error came in place of a reply."""
        if (is_mysql(self._engine) or is_postgres(self._engine)) and outcome_unknown(error):
            self._connection_unusable = True
            self.mark_failed(as_write_error(error, _STATEMENT))

    def _connection(self) -> Connection:
        if self._conn is None:
            raise LifecycleError(f"this DbSession is {self._life.status.value}: use it inside its own with block, once")
        if self._failure is not None:
            raise LifecycleError(
                "the transaction of this DbSession failed with a conflict or lost its connection, so it can only be "
                "rolled back; leave the block and try again in a new session"
            ) from self._failure
        self._reject_ended(self._conn)
        return self._conn

    def _roll_back(self, conn: Connection, error: BaseException) -> None:
        """ROLLBACK, or close the connection. Does not raise: the caller reports ``error``."""
        if is_demotion(error):
            renew_pool(self._engine)
            invalidate(conn)
            return
        # After an interrupt a reply may still be on its way; the next user of the connection would read it.
        if self._connection_unusable or not isinstance(error, Exception):
            invalidate(conn)
            return
        is_active = conn.in_transaction()
        try:
            conn.rollback()
            # After a COMMIT that failed or was refused, SQLAlchemy has sent nothing.
            if not is_active and not conn.invalidated:
                conn.connection.rollback()
        except Exception:  # noqa: BLE001 - the server rolls back when the connection ends
            invalidate(conn)

    def _reject_autocommit(self, conn: Connection) -> None:
        """Raise for a connection in autocommit mode: there would be no transaction, and no error."""
        raw: Any = conn.connection.dbapi_connection
        if is_mysql(self._engine):
            autocommit = raw.get_autocommit()
        elif is_postgres(self._engine):
            autocommit = bool(getattr(raw, "autocommit", False))
        else:
            autocommit = raw.isolation_level is None
        if autocommit:
            raise ConfigurationError("DbSession needs transactions, and this engine is in AUTOCOMMIT mode")


@lru_cache(256)
def _clause(sql: str) -> TextClause:
    """Return the clause of a statement; finding its binds costs 8 µs, and a program repeats its statements."""
    return text(sql)
