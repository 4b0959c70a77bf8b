"""Lock strategies for UPDATE. Each locks on the connection that writes."""

from typing import Final, assert_never

from conquiet.config import DbConfig
from conquiet.core.constructor_help import describe_constructors
from conquiet.core.validation import require_instance
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

describe_constructors(globals())

_DEFAULT_TIMEOUT_S: Final = 10


def make_lock_backend(
    strategy: LockStrategy, db_config: DbConfig, *, lock_timeout_s: float | None = None
) -> LockBackend | None:
    """Return the backend of a strategy; None for NONE. SPEC(003 §5.8).

    Args:
        strategy: The strategy.
        db_config: A row lock finds the row by its ``id_column``.
        lock_timeout_s: Longest wait for an advisory or table lock; 10 if None. Where the server has whole seconds
            only, a fraction is rounded up. A ``ConfigurationError`` with a strategy that has neither lock.
    """
    require_instance("lock_strategy", strategy, LockStrategy)
    seconds = _DEFAULT_TIMEOUT_S if lock_timeout_s is None else lock_timeout_s
    match strategy:
        case LockStrategy.NONE:
            _reject_timeout(lock_timeout_s, "NONE takes no lock")
            return None
        case LockStrategy.ADVISORY:
            return MySQLAdvisoryLockBackend(lock_timeout=seconds)
        case LockStrategy.ROW:
            _reject_timeout(lock_timeout_s, "a row lock waits as long as the server's innodb_lock_wait_timeout")
            return MySQLRowLockBackend(id_column=db_config.id_column)
        case LockStrategy.ADVISORY_AND_ROW:
            return CompositeLockBackend(
                [MySQLAdvisoryLockBackend(lock_timeout=seconds), MySQLRowLockBackend(id_column=db_config.id_column)]
            )
        case LockStrategy.TABLE:
            return MySQLTableLockBackend(lock_timeout_s=seconds)
        case _:
            assert_never(strategy)


def _reject_timeout(lock_timeout_s: float | None, why: str) -> None:
    if lock_timeout_s is not None:
        raise ConfigurationError(f"lock_timeout_s is for advisory and table locks only: {why}")
