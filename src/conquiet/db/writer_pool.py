"""The writer's own connection pool, next to the caller's and with the same settings. See docs/decisions/0007.

Most of the cost of a write is its round trips, and SQLAlchemy's defaults need three for an INSERT: the statement,
COMMIT, and the pool's ROLLBACK on return. The last two can only be saved by changing how connections behave (autocommit
on, no reset). Doing that to the caller's pool would change the caller's other transactions. So the writer opens its own
connections: same address, credentials, connect arguments, pool settings and event listeners, but

- a connection stays in the mode it was last used in. Autocommit: one statement, which is its own
  transaction. Manual: the statements of a locked UPDATE, then COMMIT. Changing the mode costs one trip.
- nothing is sent on return. ``Checkout`` commits or rolls back each transaction itself, and a
  connection that could not be brought back to a known state is closed.

The price is up to a second pool's worth of connections to the server. They are opened only when needed and shared by
all writers of an engine. They are closed with the last writer (even if it is dropped without ``close()``) or with the
engine's ``dispose()``.

SQLite has no trips to save (and ``:memory:`` lives in one connection), so there the caller's
engine itself is used. A write while a transaction is open on its only connection is refused.

Five accesses to private names of SQLAlchemy remain, each with a comment that gives the reason. ``tests/integration/db/
test_round_trips.py`` counts the statements that reach the server, so it fails if one of them stops working.
"""

import os
import threading
import weakref
from functools import partial
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.pool import Pool
from sqlalchemy.pool.base import ResetStyle

from conquiet.db.connection_cleanup import clean_up
from conquiet.db.dialects import is_mysql
from conquiet.db.errors import DbErrorKind, fault_of, outcome_unknown
from conquiet.db.failover import is_demotion, renew_pool
from conquiet.db.statement_execution import WriterConnection
from conquiet.errors import DbWriteError, LifecycleError

_OPEN: Final = "conquiet_transaction_open"


class Checkout:
    """Hold one connection for one write.

    Attributes:
        conn: The connection that statements are executed on.
        autocommit: Each statement is its own transaction.
    """

    __slots__ = ("_info", "_raw", "autocommit", "conn")

    _raw: Any

    def __init__(self, conn: Connection, *, autocommit: bool | None) -> None:
        self.conn = conn
        self.autocommit = False
        # Both kept, because reading them from an invalidated connection would reconnect.
        self._info = conn.info
        self._raw = conn.connection.dbapi_connection
        if isinstance(conn, WriterConnection):
            if autocommit is None:  # as it was last used; a new one in the cheaper mode
                autocommit = _OPEN not in self._info or bool(self._raw.get_autocommit())
            self.autocommit = autocommit
            self._raw.autocommit(autocommit)  # sends nothing if it is in that mode already
            self._info[_OPEN] = not autocommit
            # SQLAlchemy has no public attribute for whether an engine has listeners. Without any, statements go to the
            # driver directly, which takes a third to a half of the time of Connection.execute.
            if not conn.engine._has_events:  # noqa: SLF001
                conn.raw = self._raw

    def commit(self) -> None:
        """COMMIT. Sends nothing in autocommit mode, where the statement has committed itself."""
        # SQLAlchemy began a transaction for statements that went through it, and none for those sent to the driver.
        if self.conn.in_transaction():
            self.conn.commit()
        elif self._info.get(_OPEN):
            self._raw.commit()
        self._info[_OPEN] = False

    def abort(self, error: BaseException) -> None:
        """Bring the connection back to a state in which nothing is open, or close it.

        Does not raise: the caller reports ``error``.
        """
        clean_up(partial(self._abort, error))

    def _abort(self, error: BaseException) -> None:
        conn = self.conn
        # An error of the driver is by now the cause of a DbWriteError; anything else was raised elsewhere.
        cause = error.__cause__ if isinstance(error, DbWriteError) else None
        # Even if this connection is already closed.
        if (
            cause is not None
            and isinstance(conn, WriterConnection)
            and (fault_of(cause) is DbErrorKind.GONE or is_demotion(cause))
        ):
            # The idle connections too: most likely they were lost with this one, and each would fail a write.
            renew_pool(conn.engine)
        if conn.invalidated or conn.closed:
            return
        # After an interrupt (Ctrl-C, a time limit by signal) a reply may still be on its way, and the next
        # user of the connection would read it as the reply to their statement.
        if not isinstance(error, Exception):
            conn.invalidate()
        elif cause is None or not isinstance(conn, WriterConnection):
            self._roll_back()
        elif outcome_unknown(cause):
            conn.invalidate()
        else:
            self._roll_back()

    def release(self) -> None:
        """Return the connection to its pool, unless it was invalidated."""
        clean_up(self.conn.close)

    def _roll_back(self) -> None:
        try:
            if self.conn.in_transaction():
                self.conn.rollback()
            elif self._info.get(_OPEN):
                self._raw.rollback()
        except Exception:  # noqa: BLE001 - the state of the connection is unknown
            self.conn.invalidate()
        else:
            self._info[_OPEN] = False


def _reject_open(conn: Connection) -> None:
    """Raise if a transaction of other code is open on this connection: our COMMIT would commit it."""
    if getattr(conn.connection.dbapi_connection, "in_transaction", False):
        # Return it without the pool's ROLLBACK, which would end that transaction. close() has no such option.
        conn.connection._close_special(transaction_reset=True)  # noqa: SLF001
        raise LifecycleError(
            "this engine has one connection for all (an SQLite database in memory), and a transaction is open on it; "
            "end that first, write through its DbSession, or use a database in a file"
        )


class WriterPool:
    """The connections of all writers on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._own: Engine | None = None
        self._opening = threading.Lock()
        self._users: weakref.WeakSet[object] = weakref.WeakSet()

    def checkout(self, *, autocommit: bool | None) -> Checkout:
        """Return a connection in autocommit mode, in manual mode, or (None) in its last mode; the caller closes it."""
        conn = (self._own or self._opened()).connect()
        if not isinstance(conn, WriterConnection):
            _reject_open(conn)
        try:
            return Checkout(conn, autocommit=autocommit)
        except BaseException:
            conn.invalidate()
            conn.close()
            raise

    def register(self, user: object) -> None:
        """Add one writer, until it is unregistered or garbage collected."""
        self._users.add(user)

    def unregister(self, user: object) -> None:
        """Remove one writer; the last one closes the connections."""
        self._users.discard(user)
        if not self._users:
            self.close()

    def close(self) -> None:
        """Close idle connections now, and the others when they are returned. A later use opens new ones."""
        own, self._own = self._own, None
        if own is not None and own is not self._engine():
            own.dispose()

    @property
    def engine(self) -> Engine:
        """The engine of the writers; its pool has the same settings."""
        engine = self._engine()
        assert engine is not None  # noqa: S101 - the calling writer holds a reference
        return engine

    @property
    def pool_status(self) -> str:
        """SQLAlchemy's description of the pool, for operators and tests."""
        return "not opened" if self._own is None else self._own.pool.status()

    def _opened(self) -> Engine:
        with self._opening:
            if self._own is None:
                self._own = _own_engine(self.engine) if is_mysql(self.engine) else self.engine
            return self._own


class _WriterEngine(OptionEngine):
    """An engine with a separate pool that shares the listeners of the caller's engine, so that tracing works.

    SQLAlchemy's ``OptionEngine`` shares listeners, including listeners that are registered later.
    """

    _connection_cls = WriterConnection
    pool: Pool = None  # type: ignore[assignment]  # hides the property that returns the caller's pool


class _EndOnlyOpenTransactions:
    """Overrides of the dialect: COMMIT and ROLLBACK are sent only if a transaction is open on the server.

    With a listener on the engine, statements go through SQLAlchemy, which treats each of them as the beginning of a
    transaction and ends it, even in autocommit mode. Measured with a listener that does nothing (MariaDB, loopback, 40
    turns): 4,323 INSERTs per second against 3,060 without this class, and 1,402 advisory UPDATEs against 1,164.
    """

    def do_rollback(self, dbapi_connection: Any) -> None:
        if dbapi_connection.info.get(_OPEN):
            super().do_rollback(dbapi_connection)  # type: ignore[misc]

    def do_commit(self, dbapi_connection: Any) -> None:
        if dbapi_connection.info.get(_OPEN):
            super().do_commit(dbapi_connection)  # type: ignore[misc]


def _own_engine(engine: Engine) -> Engine:
    pool = engine.pool.recreate()
    # recreate() takes no arguments, so there is no public way to set it. It saves the ROLLBACK on return.
    pool._reset_on_return = ResetStyle.reset_none  # noqa: SLF001
    # The first connection initializes the dialect (server version and so on); copy it after that.
    pool.connect().close()
    own = _WriterEngine(engine, {})
    own.pool = pool
    own.dialect = _with_own_ends(engine.dialect)
    own.hide_parameters = True
    return own


def _with_own_ends(dialect: Dialect) -> Dialect:
    """Copy a dialect that is initialized, with the overrides of ``_EndOnlyOpenTransactions``."""
    kind = type(dialect)
    # SQLAlchemy wants each class of a dialect to state that itself.
    stated = {"supports_statement_cache": kind.supports_statement_cache}
    own: Dialect = object.__new__(type(kind.__name__, (_EndOnlyOpenTransactions, kind), stated))
    own.__dict__.update(dialect.__dict__)
    return own


# Kept on the engine itself and in no table of ours: the own engine refers to the caller's, so a table would keep both
# alive. This way they form a cycle that is collected as a whole.
_ATTRIBUTE: Final = "_conquiet_writer_connections"
_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_registering = threading.Lock()
# Sockets that a forked child inherited from its parent. Closing them in the child would end the parent's sessions on
# the server, so they are kept and never used.
_inherited: list[object] = []


def writer_pool_of(engine: Engine) -> WriterPool:
    """Return the pool that all writers of this engine share."""
    found: WriterPool | None = engine.__dict__.get(_ATTRIBUTE)
    if found is not None:
        return found
    with _registering:
        found = engine.__dict__.get(_ATTRIBUTE)
        if found is None:
            found = engine.__dict__[_ATTRIBUTE] = WriterPool(engine)
            _engines.add(engine)
            # Any listener makes SQLAlchemy dispatch events for every statement of the engine, which costs the caller
            # time and would send our own statements the slow way. dispose() is dispatched in any case.
            had_events = engine._has_events  # noqa: SLF001
            event.listen(engine, "engine_disposed", _disposed)
            engine._has_events = had_events  # noqa: SLF001
        return found


def _disposed(engine: Engine) -> None:
    found = engine.__dict__.get(_ATTRIBUTE)
    if found is not None:
        found.close()


def _after_fork() -> None:
    global _engines, _registering  # noqa: PLW0603 - the child starts with none
    _inherited.extend(engine.__dict__.pop(_ATTRIBUTE, None) for engine in list(_engines))
    _engines = weakref.WeakSet()
    _registering = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
