"""Wait for PostgreSQL's notification that an outbox has new rows, so that a relay need not wait for its next poll.

Only a hint: a lost notification costs one pause of the relay. Polling finds the row, and also finds rows that become
due later. So after every failure the listener waits out the pause, and listens again after 5 s.
"""

import time
from typing import Any, Final

from sqlalchemy.engine import Connection, Engine

from conquiet.core.log import FactLogger
from conquiet.db.engine_pool import separate_engine
from conquiet.db.statement_abort import AbortableEngine
from conquiet.transactional.sql_dialect import channel_of

logger = FactLogger(__name__)

_PAUSE_S: Final = 5.0


def listener_for(engine: Engine, table: str) -> "OutboxListener | None":
    """Return a listener for the engine's database; None where there are no notifications, or not with this driver."""
    # LISTEN needs a driver that can wait for the connection's socket; psycopg 3 has a method for it.
    if engine.dialect.name != "postgresql" or engine.dialect.driver != "psycopg":
        return None
    return OutboxListener(engine, table)


class OutboxListener:
    """One connection that listens for new rows of an outbox. Used by one thread.

    Args:
        engine: Where its connection comes from.
        table: The outbox.
    """

    def __init__(self, engine: Engine, table: str) -> None:
        self._statements = AbortableEngine(separate_engine(engine))
        self._engine = self._statements.engine
        self._listen = f'LISTEN "{channel_of(table)}"'
        self._connection: Connection | None = None
        self._not_before = 0.0

    @property
    def is_listening(self) -> bool:
        """True while there is a connection that listens."""
        return self._connection is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, at most ``timeout_s``; True if rows may have been added. Never raises."""
        began = time.monotonic()
        try:
            if self._connection is None and began >= self._not_before:
                self._connection = self._connect()
                return True  # no notification is sent for rows that were committed before
            if self._connection is not None:
                raw: Any = self._connection.connection.driver_connection
                return any(True for _ in raw.notifies(timeout=timeout_s, stop_after=1))
        except Exception as error:  # noqa: BLE001 - only a hint, see above; the driver raises many types
            logger.info("no notifications from the database, polling", error=type(error).__name__)
            self._drop()
            self._not_before = time.monotonic() + _PAUSE_S
        time.sleep(max(0.0, began + timeout_s - time.monotonic()))
        return False

    def abort(self) -> None:
        """Make a wait for the server fail immediately, and every later one. Takes no lock."""
        self._statements.abort()

    def close(self) -> None:
        """Close the connection. It may be called twice."""
        self._drop()
        self._engine.dispose()

    def _connect(self) -> Connection:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            connection.exec_driver_sql(self._listen)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.invalidate()
                connection.close()
            except Exception as error:  # noqa: BLE001 - it is not used again
                logger.debug("connection not closed", error=type(error).__name__)
