"""Abort the statements of one user of an engine, from another thread or a signal handler.

A statement that waits, for a lock or for a server that does not reply, ends no sooner than its connection. So the
socket is shut down: the driver raises, the server rolls the transaction back, and the pool drops the connection.

See docs/decisions/0014.
"""

import contextlib
import os
import socket
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine


class AbortableEngine:
    """An engine with connections that can be aborted. Used by one thread.

    Args:
        engine: Shares its pool. Only connections that are opened with ``self.engine`` are aborted.

    Attributes:
        engine: The engine to use.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine: Engine = engine.execution_options()  # events of the result concern its user alone
        self._opened: list[Connection] = []
        self._aborted = False
        event.listen(self.engine, "engine_connect", self._remember)

    def abort(self) -> None:
        """Make a statement that waits fail immediately, and every later one. Takes no lock.

        A connection that is being opened is not aborted: its timeout ends it. SQLite has no connection to abort.
        """
        self._aborted = True
        for connection in list(self._opened):
            _shut_down(connection)

    def _remember(self, connection: Connection) -> None:
        self._opened = [one for one in self._opened if not one.closed]
        self._opened.append(connection)
        if self._aborted:  # checked after the append, so that abort() cannot miss it
            _shut_down(connection)


def _shut_down(connection: Connection) -> None:
    # After any error here the connection is closed already or has no socket.
    with contextlib.suppress(Exception):
        driver: Any = connection.connection.dbapi_connection
        number = driver._sock.fileno() if hasattr(driver, "_sock") else driver.fileno()  # noqa: SLF001 - PyMySQL, psycopg
        # A copy of the number, so that nothing is closed: the thread that waits still uses the connection.
        with socket.socket(fileno=os.dup(number)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
