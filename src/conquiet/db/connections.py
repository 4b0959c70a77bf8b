"""The writer's own connections: a pool beside the caller's, made from the same ingredients.

A round trip is most of what a write costs, and SQLAlchemy's defaults spend three on an INSERT:
the statement, COMMIT, and the pool's ROLLBACK on return. The last two can only be saved by
changing how connections behave (autocommit on, no reset), and doing that to the caller's pool
would change the caller's other transactions. So the writer opens connections of its own: same
address, credentials, connect arguments, pool settings and event listeners, but

- a connection stays in the mode it was last used in. Autocommit: one statement, which is its own
  transaction. Manual: the statements of a locked UPDATE, then COMMIT. Changing costs one trip.
- nothing is sent on return. ``Checkout`` commits or rolls back each transaction itself, and a
  connection that could not be brought back to a known state is closed.

The price is up to a second pool's worth of connections to the server. They are opened only when
needed, shared by all writers of an engine, closed with the last writer (also with one that is dropped without
``close()``) or with the engine's ``dispose()``. See docs/decisions/0030.

SQLite has no trips to save (and ``:memory:`` lives in one connection), so there the caller's
engine itself is used. A write while a transaction is open on that one connection is refused.
"""

import copy
import os
import threading
import weakref
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool.base import ResetStyle

from conquiet.db.dialects import is_mysql
from conquiet.db.faults import Fault, fault_of, reply_missing
from conquiet.db.running import WriterConnection
from conquiet.errors import DbWriteError, LifecycleError

_OPEN: Final = "conquiet_transaction_open"


class Checkout:
    """One connection, borrowed for one write.

    Attributes:
        conn: What statements are executed on.
        autocommit: Each statement is a transaction by itself.
    """

    __slots__ = ("_info", "_raw", "autocommit", "conn")

    _raw: Any

    def __init__(self, conn: Connection, *, autocommit: bool | None) -> None:
        self.conn = conn
        self.autocommit = False
        # Both kept, because asking an invalidated connection for them would reconnect.
        self._info = conn.info
        self._raw = conn.connection.dbapi_connection
        if isinstance(conn, WriterConnection):
            if autocommit is None:  # as it was last used; a new one in the cheaper mode
                autocommit = _OPEN not in self._info or bool(self._raw.get_autocommit())
            self.autocommit = autocommit
            self._raw.autocommit(autocommit)  # sends nothing if it is in that mode already
            self._info[_OPEN] = not autocommit
            if not conn.engine._has_events:  # noqa: SLF001 - is somebody listening?
                conn.raw = self._raw

    def commit(self) -> None:
        """COMMIT. Sends nothing in autocommit mode, where the statement has committed itself."""
        # What went through SQLAlchemy is in a transaction of its making; what went to the driver is not.
        if self.conn.in_transaction():
            self.conn.commit()
        elif self._info.get(_OPEN):
            self._raw.commit()
        self._info[_OPEN] = False

    def abandon(self, error: BaseException) -> None:
        """Bring the connection back to a state in which nothing is open, or close it.

        Does not raise: the error that brought us here is the one to report.
        """
        conn = self.conn
        # What was raised in the driver is the cause of an error of ours by now; anything else was raised elsewhere.
        cause = error.__cause__ if isinstance(error, DbWriteError) else None
        # Also when whoever saw it has closed this connection already.
        if cause is not None and isinstance(conn, WriterConnection) and fault_of(cause) is Fault.GONE:
            _renew_pool(conn)
        if conn.invalidated or conn.closed:
            return
        # After an interrupt (Ctrl-C, a time limit by signal) a reply may still be on its way, and the next
        # user of the connection would take it for theirs.
        if not isinstance(error, Exception):
            conn.invalidate()
        elif cause is None or not isinstance(conn, WriterConnection):
            self._roll_back()
        elif reply_missing(cause):
            conn.invalidate()
        else:
            self._roll_back()

    def give_back(self) -> None:
        """Return the connection to its pool, or to nobody if it was invalidated."""
        self.conn.close()

    def _roll_back(self) -> None:
        try:
            if self.conn.in_transaction():
                self.conn.rollback()
            elif self._info.get(_OPEN):
                self._raw.rollback()
        except Exception:  # noqa: BLE001 - whatever it was, the connection is of no use any more
            self.conn.invalidate()
        else:
            self._info[_OPEN] = False


def _renew_pool(conn: WriterConnection) -> None:
    """Let go of the idle connections too: most likely they died with this one, and each would cost a write."""
    old = conn.engine.pool
    conn.engine.pool = old.recreate()
    old.dispose()


def _refuse_open(conn: Connection) -> None:
    """Raise if this is the connection of somebody's open transaction: our COMMIT would be theirs."""
    if getattr(conn.connection.dbapi_connection, "in_transaction", False):
        # Back without the pool's ROLLBACK, which would be theirs too. close() offers no such choice.
        conn.connection._close_special(transaction_reset=True)  # noqa: SLF001
        raise LifecycleError(
            "this engine has one connection for all (an SQLite database in memory), and a transaction is open on it; "
            "end that first, write through its DbSession, or use a database in a file"
        )


class WriterConnections:
    """The own connections of all writers on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._origin = weakref.ref(engine)
        self._clone: Engine | None = None
        self._making = threading.Lock()
        self._users: weakref.WeakSet[object] = weakref.WeakSet()

    def checkout(self, *, autocommit: bool | None) -> Checkout:
        """Borrow a connection in autocommit mode, in manual mode, or (None) in whichever; the borrower closes it."""
        conn = (self._clone or self._cloned()).connect()
        if not isinstance(conn, WriterConnection):
            _refuse_open(conn)
        try:
            return Checkout(conn, autocommit=autocommit)
        except BaseException:
            conn.invalidate()
            conn.close()
            raise

    def join(self, user: object) -> None:
        """Count one writer in, until it leaves or nobody has it any more."""
        self._users.add(user)

    def leave(self, user: object) -> None:
        """Count one writer out; the last one closes the connections."""
        self._users.discard(user)
        if not self._users:
            self.close()

    def close(self) -> None:
        """Close what is idle now; what is in use is closed when it comes back. A later use opens anew."""
        clone, self._clone = self._clone, None
        if clone is not None and clone is not self._origin():
            clone.dispose()

    @property
    def pool_status(self) -> str:
        """SQLAlchemy's own words about the pool, for operators and tests."""
        return "not opened" if self._clone is None else self._clone.pool.status()

    def _cloned(self) -> Engine:
        with self._making:
            if self._clone is None:
                engine = self._origin()
                assert engine is not None  # noqa: S101 - the writer that asks holds it
                self._clone = _clone(engine) if is_mysql(engine) else engine
            return self._clone


class _Clone(Engine):
    """An engine that tells the original engine's listeners too: tracing goes on working."""

    _connection_cls = WriterConnection
    _heard_from: "weakref.ref[Engine] | None" = None

    @property
    def _has_events(self) -> bool:
        origin = self._heard_from() if self._heard_from is not None else None
        return bool(self.__dict__.get("_own_events")) or (origin is not None and origin._has_events)  # noqa: SLF001

    @_has_events.setter
    def _has_events(self, value: bool) -> None:
        self.__dict__["_own_events"] = value


def _clone(engine: Engine) -> Engine:
    pool = engine.pool.recreate()
    # No public way leads here: recreate() takes no arguments. A test counts the statements that
    # reach the server, so a SQLAlchemy in which this does nothing any more does not go unnoticed.
    pool._reset_on_return = ResetStyle.reset_none  # noqa: SLF001
    # The first connection initializes the dialect (server version and so on); copy it after that.
    pool.connect().close()
    dialect = copy.copy(engine.dialect)
    send_rollback, send_commit = dialect.do_rollback, dialect.do_commit

    def rollback_if_open(connection: Any) -> None:
        # Connection.close() rolls back by itself whatever SQLAlchemy takes for a transaction, also
        # when our COMMIT came before or the connection is in autocommit mode.
        if connection.info.get(_OPEN):
            send_rollback(connection)

    def commit_if_open(connection: Any) -> None:
        if connection.info.get(_OPEN):
            send_commit(connection)

    setattr(dialect, "do_rollback", rollback_if_open)  # noqa: B010 - mypy forbids the plain assignment
    setattr(dialect, "do_commit", commit_if_open)  # noqa: B010
    clone = _Clone(pool, dialect, engine.url, echo=engine.echo, hide_parameters=True)
    clone._heard_from = weakref.ref(engine)  # noqa: SLF001
    clone.dispatch = clone.dispatch._join(engine.dispatch)  # noqa: SLF001 - as SQLAlchemy's own OptionEngine does
    return clone


# Kept on the engine itself and in no table of ours: the clone's pool holds the engine (a listener of SQLAlchemy's own
# does), so whoever held the clone would hold the engine for ever. This way they form a circle that goes as a whole.
_KEPT_AS: Final = "_conquiet_writer_connections"
_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_registering = threading.Lock()
# What a forked child inherited: sockets that belong to the parent. Closing them there would say goodbye
# to the server in the parent's name, so they are kept and never touched.
_inherited: list[object] = []


def connections_of(engine: Engine) -> WriterConnections:
    """Return the writers' connections beside this engine, the same for all of them."""
    found: WriterConnections | None = engine.__dict__.get(_KEPT_AS)
    if found is not None:
        return found
    with _registering:
        found = engine.__dict__.get(_KEPT_AS)
        if found is None:
            found = engine.__dict__[_KEPT_AS] = WriterConnections(engine)
            _engines.add(engine)
            # Any listener makes SQLAlchemy announce every statement of the engine, which costs the caller
            # time. This one hears of dispose() only, and that is announced in any case.
            had_events = engine._has_events  # noqa: SLF001
            event.listen(engine, "engine_disposed", _disposed)
            engine._has_events = had_events  # noqa: SLF001
        return found


def _disposed(engine: Engine) -> None:
    # Whoever closes the engine means all of it.
    found = engine.__dict__.get(_KEPT_AS)
    if found is not None:
        found.close()


def _after_fork() -> None:
    global _engines, _registering  # noqa: PLW0603 - the child starts with none
    _inherited.extend(engine.__dict__.pop(_KEPT_AS, None) for engine in list(_engines))
    _engines = weakref.WeakSet()
    _registering = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
