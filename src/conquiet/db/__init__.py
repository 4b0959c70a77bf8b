"""Concurrent writes that lose no update. This package imports no broker.

    DbWriter      one operation at a time, under the lock strategy its user chose
    DbSession     exactly one transaction, for work of more than one statement
    locking/      the strategies; see docs/locking.md for which one when

``DbWriter`` and the locks support MySQL and MariaDB; ``DbSession`` also PostgreSQL. SQLite works for everything except
the locks, so that a demo or a unit test needs no server.
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("mysql", "sqlalchemy")

from conquiet.db.engine_pool import pool_capacity  # noqa: E402
from conquiet.db.helpers import insert_idempotent, occ_update, retry_on_conflict  # noqa: E402 - after the check above
from conquiet.db.locking import LockStrategy, make_lock_backend  # noqa: E402
from conquiet.db.locks import AdvisoryLock, RowLock  # noqa: E402
from conquiet.db.models import DbOperation, DbOperationType, WriteOutcome  # noqa: E402
from conquiet.db.session import DbSession  # noqa: E402
from conquiet.db.writer import DbWriter  # noqa: E402

__all__ = [
    "AdvisoryLock",
    "DbOperation",
    "DbOperationType",
    "DbSession",
    "DbWriter",
    "LockStrategy",
    "RowLock",
    "WriteOutcome",
    "insert_idempotent",
    "make_lock_backend",
    "occ_update",
    "pool_capacity",
    "retry_on_conflict",
]

describe_constructors(globals())
