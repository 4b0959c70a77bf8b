"""Check every few seconds that the application's database replies, for readiness.

While no message arrives, no handler notices that the database is unavailable, and ``/readyz`` would report "ready".
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from conquiet.core.background import BackgroundWorker
from conquiet.core.lifecycle import AsyncLifecycle, Health
from conquiet.core.log import reason_of
from conquiet.metrics.outages import OutageWatch

if TYPE_CHECKING:
    from sqlalchemy import Engine

INTERVAL_S: Final = 5.0
_STALE_S: Final = 60.0
_SLICE_S: Final = 0.1


class DatabaseCheck(BackgroundWorker):
    """Opens a separate connection every few seconds. A failure stops no worker. See ``core.lifecycle.Worker``.

    Args:
        engine: The database. Its pool is not used: a pool without a free connection is not an outage.
        interval_s: Time between two checks.
    """

    name = "database"
    abandoned = 0

    def __init__(self, engine: "Engine", *, interval_s: float = INTERVAL_S) -> None:
        from conquiet.db.engine_pool import database_address

        self._engine = engine
        self._interval_s = interval_s
        self._address = database_address(engine)
        self._life = AsyncLifecycle("this DatabaseCheck")
        self._outage = OutageWatch("the database", "handlers that need it fail and are not charged")
        self._failure = ""
        self._answered_at = time.monotonic()

    async def run(self) -> None:
        """Check until stopped."""
        self._life.start()
        try:
            while not self._life.is_stopping:
                # A thread that nothing waits for: a database that does not reply must not delay a stop.
                checking = threading.Thread(target=self._check, name="conquiet-database-check", daemon=True)
                checking.start()
                await self._wait_for(checking)
        finally:
            self._outage.close()
            self._life.finish()

    async def _wait_for(self, checking: threading.Thread) -> None:
        next_at = time.monotonic() + self._interval_s
        while checking.is_alive() or time.monotonic() < next_at:
            if self._life.is_stopping:  # stop() may only assign
                return
            await asyncio.sleep(_SLICE_S)

    def stop(self) -> None:
        """Request the stop. It ends within a tenth of a second."""
        self._life.request_stop()

    def health(self) -> Health:
        """Report the result of the last check."""
        is_stale = time.monotonic() - self._answered_at > _STALE_S
        silence = f"the server {self._address} has not replied for {_STALE_S:g} s" if is_stale else ""
        return Health(status=self._life.status, reason=self._failure or silence)

    async def close(self) -> None:
        """Stop and wait for the end. Each check closes its own connection."""
        self._life.stop()
        await self._life.wait_ended()

    def _check(self) -> None:
        from sqlalchemy.engine import Engine

        from conquiet.db.errors import OperationInfo, as_write_error

        engine = Engine(self._engine.pool.recreate(), self._engine.dialect, self._engine.url, hide_parameters=True)
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1")
        except Exception as error:  # noqa: BLE001 - after any error the database cannot be used
            info = OperationInfo("checking the database for readiness")
            failure = as_write_error(error, info, connecting=self._engine)
            if self._life.is_stopping:  # a late answer: the outage is closed
                return
            self._failure = reason_of(failure)
            self._outage.failed(failure, address=self._address)
        else:
            self._failure = ""
            self._answered_at = time.monotonic()
            self._outage.succeeded()
        finally:
            engine.dispose()


def check_for(engine: Callable[[], "Engine"]) -> list[DatabaseCheck]:
    """Return the check of a database server. None for SQLite, which is a file of this host."""
    found = engine()
    return [] if found.dialect.name == "sqlite" else [DatabaseCheck(found)]
