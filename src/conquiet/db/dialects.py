"""Which databases this room works on."""

from typing import Final

from sqlalchemy.engine import Engine

from conquiet.db.locking.strategy import LockStrategy
from conquiet.errors import ConfigurationError

_MYSQL: Final = frozenset({"mysql", "mariadb"})
_SQLITE: Final = "sqlite"


def is_mysql(engine: Engine) -> bool:
    """Whether the engine talks to MySQL or MariaDB."""
    return engine.dialect.name in _MYSQL


def require_supported(engine: object) -> Engine:
    """Return ``engine`` if it is an Engine for MySQL, MariaDB or SQLite. No I/O."""
    if not isinstance(engine, Engine):
        raise ConfigurationError(f"engine must be a sqlalchemy Engine, got a {type(engine).__name__}")
    if not is_mysql(engine) and engine.dialect.name != _SQLITE:
        raise ConfigurationError(
            f"conquiet.db works on MySQL and MariaDB (and on SQLite for tests), not on {engine.dialect.name}"
        )
    return engine


def require_mysql_locks(engine: Engine, what: str) -> None:
    """Raise unless the engine's database has MySQL's locks. No I/O."""
    if not is_mysql(engine):
        raise ConfigurationError(
            f"{what} is a lock of MySQL and MariaDB; {engine.dialect.name} has none like it. "
            "Use LockStrategy.NONE there, or occ_update"
        )


def require_strategy(engine: Engine, strategy: LockStrategy) -> None:
    """Raise if the strategy takes a lock that the database does not have. No I/O."""
    if strategy is not LockStrategy.NONE:
        require_mysql_locks(engine, f"LockStrategy.{strategy.name}")
