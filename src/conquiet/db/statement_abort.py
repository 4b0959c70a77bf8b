"""Abort the statements of one user of an engine, from another thread or a signal handler.

A statement that waits, for a lock or for a server that does not reply, ends no sooner than its connection. So the
socket is shut down: the driver raises, the server rolls the transaction back, and the pool drops the connection.

A connection that is being opened has no socket that could be reached, and the drivers wait long for a server that
accepts and does not reply (psycopg 130 s, PyMySQL without a limit). So it is taken from the pool in a daemon thread,
and an abort ends only the wait for that thread. The thread discards a connection that is too late.

See docs/decisions/0014.
"""

import contextlib
import os
import socket
from functools import partial
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import PoolProxiedConnection

from conquiet.core.threads import call_in_daemon_thread
from conquiet.db.dialects import is_mysql, is_postgres

_ABORTABLE: Final = "_conquiet_abortable"
_SLICE_S: Final = 0.1
"""Longest wait for a connection without a check for an abort: ``abort()`` takes no lock, so it wakes no thread."""


class AbortableEngine:
    """An engine with connections that can be aborted. Used by one thread.

    Args:
        engine: Shares its pool. Only connections that are opened with ``self.engine`` are aborted.

    Attributes:
        engine: The engine to use.
        is_aborted: True after ``abort()``.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine: Engine = engine.execution_options()  # events of the result concern its user alone
        self.is_aborted = False
        self._opened: list[Connection] = []
        self.include(self.engine)

    def include(self, engine: Engine) -> None:
        """Make the connections of another engine abortable, too."""
        setattr(engine, _ABORTABLE, self)
        event.listen(engine, "engine_connect", self._remember)
        if is_mysql(engine) or is_postgres(engine):  # a connection of SQLite belongs to its thread, and opens a file
            engine.raw_connection = partial(self._check_out, engine)  # type: ignore[method-assign] # of this engine only; others share its pool

    def abort(self) -> None:
        """Make a statement or the opening of a connection fail that waits, and every later one. Takes no lock.

        SQLite has no connection to abort.
        """
        self.is_aborted = True
        for connection in list(self._opened):
            _shut_down(connection)

    def _check_out(self, engine: Engine) -> PoolProxiedConnection:
        """Take a connection from the pool, which may open one. Replaces ``Engine.raw_connection``."""
        pending = call_in_daemon_thread("conquiet-database-connect", engine.pool.connect, discard=_discard)
        while True:
            if self.is_aborted and pending.cancel():
                raise OperationalError("opening a connection", None, ConnectionAbortedError("aborted by a forced stop"))
            try:
                return pending.result(_SLICE_S)
            except TimeoutError:
                if pending.done():  # raised by the driver; or the connection was opened in this moment
                    return pending.result()

    def _remember(self, connection: Connection) -> None:
        self._opened = [one for one in self._opened if not one.closed]
        self._opened.append(connection)
        if self.is_aborted:  # checked after the append, so that abort() cannot miss it
            _shut_down(connection)


def abortable_of(engine: Engine) -> AbortableEngine | None:
    """Return the object that aborts the connections of this engine, if there is one."""
    return getattr(engine, _ABORTABLE, None)


def _discard(connection: PoolProxiedConnection) -> None:
    with contextlib.suppress(Exception):  # nothing can be done about a connection that cannot be closed
        connection.invalidate()
        connection.close()


def _shut_down(connection: Connection) -> None:
    # After any error here the connection is closed already or has no socket.
    with contextlib.suppress(Exception):
        driver: Any = connection.connection.dbapi_connection
        number = driver._sock.fileno() if hasattr(driver, "_sock") else driver.fileno()  # noqa: SLF001 - PyMySQL, psycopg
        # A copy of the number, so that nothing is closed: the thread that waits still uses the connection.
        with socket.socket(fileno=os.dup(number)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
