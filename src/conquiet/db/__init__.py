"""Concurrent writes that lose no update. This package imports no broker.

    DbWriter      one operation at a time, under the lock strategy its user chose
    DbSession     exactly one transaction, for work of more than one statement
    locking/      the strategies; see docs/locking.md for which one when

``DbWriter`` and the locks support MySQL and MariaDB; ``DbSession`` also PostgreSQL. SQLite works for everything except
the locks, so that a demo or a unit test needs no server.
"""

from conquiet.core.extras import require_extra
from conquiet.core.lazy_exports import lazy_exports, stub_exports

require_extra("mysql", "sqlalchemy")

_HOMES = stub_exports(__name__)
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
