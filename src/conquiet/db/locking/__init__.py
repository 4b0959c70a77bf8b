"""Lock strategies for UPDATE, each on the connection that writes."""

from typing import assert_never

from conquiet.config import DbConfig
from conquiet.db.locking.advisory_mysql import MySQLAdvisoryLockBackend
from conquiet.db.locking.base import LockBackend
from conquiet.db.locking.composite import CompositeLockBackend
from conquiet.db.locking.row_mysql import MySQLRowLockBackend
from conquiet.db.locking.strategy import LockStrategy
from conquiet.db.locking.table_mysql import MySQLTableLockBackend
from conquiet.errors import ConfigurationError

__all__ = [
    "CompositeLockBackend",
    "LockBackend",
    "LockStrategy",
    "MySQLAdvisoryLockBackend",
    "MySQLRowLockBackend",
    "MySQLTableLockBackend",
    "make_lock_backend",
]


def make_lock_backend(strategy: LockStrategy, db_config: DbConfig) -> LockBackend | None:
    """Return the backend of a strategy; NONE has none. SPEC(003 §5.8)."""
    if not isinstance(strategy, LockStrategy):
        raise ConfigurationError(f"lock_strategy must be a LockStrategy, got a {type(strategy).__name__}")
    match strategy:
        case LockStrategy.NONE:
            return None
        case LockStrategy.ADVISORY:
            return MySQLAdvisoryLockBackend()
        case LockStrategy.ROW:
            return MySQLRowLockBackend(id_column=db_config.id_column)
        case LockStrategy.ADVISORY_AND_ROW:
            return CompositeLockBackend(
                [MySQLAdvisoryLockBackend(), MySQLRowLockBackend(id_column=db_config.id_column)]
            )
        case LockStrategy.TABLE:
            return MySQLTableLockBackend()
        case _:
            assert_never(strategy)
