"""After a fail-over of the database, close pooled connections to the demoted server.

A primary that becomes read-only keeps its connections open. A pool continues to lend them, and every write fails,
although new connections (through a proxy, a virtual address or DNS) would reach the new primary. So the first write
that such a server refuses renews the pool: idle connections are closed, and the next session opens a new one.

See docs/decisions/0007.
"""

import threading
from typing import Final

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from conquiet.db.driver_errors import number_of, sqlstate_of

# 1290 read_only or super_read_only, 1792 a read-only transaction by the session's default, 1836 read-only mode.
_NUMBERS: Final = frozenset({1290, 1792, 1836})
_SQLSTATE: Final = "25006"
# Several threads may be refused concurrently. Recreating the pool that was already replaced would copy its listener.
_renewing: Final = threading.Lock()


def is_demotion(error: BaseException | None) -> bool:
    """Return whether a server refused a write because it accepts none. Follows the causes of conquiet's errors."""
    while error is not None and not isinstance(error, DBAPIError):
        error = error.__cause__
    if error is None:
        return False
    return sqlstate_of(error) == _SQLSTATE or number_of(error) in _NUMBERS


def renew_pool(engine: Engine) -> None:
    """Close the idle connections of an engine. Connections in use are closed when they are returned."""
    with _renewing:
        old = engine.pool
        engine.pool = old.recreate()
        # After it was recreated, which copies listeners. No engine uses the old pool any more, so nothing else would
        # close connections that are returned to it.
        event.listen(old, "checkin", _close)
    old.dispose()


def _close(_connection: object, record: ConnectionPoolEntry) -> None:
    record.invalidate()
