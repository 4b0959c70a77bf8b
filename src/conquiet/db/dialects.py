"""Check that a database is supported, and that it has the locks of MySQL."""

from typing import Final

from sqlalchemy.engine import Engine

from conquiet.errors import ConfigurationError

_MYSQL: Final = frozenset({"mysql", "mariadb"})
_SQLITE: Final = "sqlite"
_POSTGRES: Final = "postgresql"

_POSTGRES_LOCKS: Final = (
    ", or a lock of PostgreSQL in a statement of the DbSession: SELECT … FOR UPDATE, or pg_advisory_xact_lock(…), "
    "which ends with the transaction"
)


def is_mysql(engine: Engine) -> bool:
    """Return True if the engine is for MySQL or MariaDB."""
    return engine.dialect.name in _MYSQL


def is_postgres(engine: Engine) -> bool:
    """Return True if the engine is for PostgreSQL."""
    return engine.dialect.name == _POSTGRES


def require_supported(engine: object) -> Engine:
    """Return ``engine`` if it is an Engine for MySQL, MariaDB, PostgreSQL or SQLite. No I/O."""
    if not isinstance(engine, Engine):
        raise ConfigurationError(f"engine must be a sqlalchemy Engine, got a {type(engine).__name__}")
    if not is_mysql(engine) and engine.dialect.name not in {_SQLITE, _POSTGRES}:
        raise ConfigurationError(
            "conquiet.db works on MySQL, MariaDB and PostgreSQL (and on SQLite for tests), not on "
            f"{engine.dialect.name}"
        )
    return engine


def require_writer_supported(engine: object) -> Engine:
    """Return ``engine`` if ``DbWriter`` works on its database. No I/O."""
    supported = require_supported(engine)
    if is_postgres(supported):
        raise ConfigurationError(
            "DbWriter works on MySQL and MariaDB (and on SQLite for tests). On PostgreSQL use a DbSession with "
            "insert_idempotent or occ_update"
        )
    return supported


def require_mysql_locks(engine: Engine, what: str) -> None:
    """Raise unless the engine's database has MySQL's locks. No I/O."""
    if not is_mysql(engine):
        raise ConfigurationError(
            f"{what} is a lock of MySQL and MariaDB; on {engine.dialect.name} it is not available. "
            "Use LockStrategy.NONE or occ_update there" + (_POSTGRES_LOCKS if is_postgres(engine) else "")
        )
