"""Find the connection that holds a lock. Best effort: bounded in time, and never the reason for a failure.

The tables of a server depend on its version, so each lookup has several queries and the first result
counts. No query text is shown: it contains values.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Connection

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.db.connection_cleanup import invalidate
from conquiet.db.errors import outcome_unknown
from conquiet.errors import LockTimeoutError

logger = FactLogger(__name__)

_HOLDER: Final = "p.id AS id, p.user AS user, p.host AS host, p.command AS command, p.time AS seconds"

# MariaDB and MySQL limit the time of a statement differently, and each ignores the other's syntax as a comment.
_BOUND: Final = "/*+ MAX_EXECUTION_TIME(1000) */"

_ADVISORY: Final = text(
    f"SELECT {_BOUND} {_HOLDER} FROM information_schema.processlist p WHERE p.id = IS_USED_LOCK(:name)"  # noqa: S608
)

# MySQL 8 and newer: every lock that is held, by table.
_ROW_MYSQL: Final = text(
    f"SELECT {_BOUND} {_HOLDER} FROM performance_schema.data_locks l "  # noqa: S608 - constants only
    "JOIN performance_schema.threads t ON t.thread_id = l.thread_id "
    "JOIN information_schema.processlist p ON p.id = t.processlist_id "
    "WHERE l.object_name = :table AND l.object_schema = COALESCE(:schema, DATABASE()) "
    "AND l.lock_type = 'RECORD' AND l.lock_status = 'GRANTED' AND p.id <> CONNECTION_ID() "
    "ORDER BY p.time DESC LIMIT 1"
)

# MariaDB shows no granted lock once no connection waits for it. The oldest other transaction that has
# locked rows is the likeliest holder; the text adds "perhaps".
_ROW_MARIADB: Final = text(
    f"SET STATEMENT max_statement_time = 1 FOR SELECT {_HOLDER}, 1 AS guess "  # noqa: S608 - constants only
    "FROM information_schema.innodb_trx x "
    "JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id "
    "WHERE x.trx_rows_locked > 0 AND p.id <> CONNECTION_ID() AND p.db = COALESCE(:schema, DATABASE()) "
    "AND :table <> '' ORDER BY x.trx_started LIMIT 1"
)

_TABLE_MYSQL: Final = text(
    f"SELECT {_BOUND} {_HOLDER} FROM performance_schema.metadata_locks m "  # noqa: S608 - constants only
    "JOIN performance_schema.threads t ON t.thread_id = m.owner_thread_id "
    "JOIN information_schema.processlist p ON p.id = t.processlist_id "
    "WHERE m.object_type = 'TABLE' AND m.object_name = :table "
    "AND m.object_schema = COALESCE(:schema, DATABASE()) "
    "AND m.lock_status = 'GRANTED' AND p.id <> CONNECTION_ID() ORDER BY p.time DESC LIMIT 1"
)

# MariaDB, where the plugin metadata_lock_info is loaded.
_TABLE_MARIADB: Final = text(
    f"SET STATEMENT max_statement_time = 1 FOR SELECT {_HOLDER} "  # noqa: S608 - constants only
    "FROM information_schema.metadata_lock_info m "
    "JOIN information_schema.processlist p ON p.id = m.thread_id "
    "WHERE m.table_name = :table AND m.table_schema = COALESCE(:schema, DATABASE()) "
    "AND p.id <> CONNECTION_ID() ORDER BY p.time DESC LIMIT 1"
)


def advisory_holder(conn: Connection, name: str) -> str | None:
    """Describe the connection that holds the advisory lock, if one still does."""
    return _query(conn, (_ADVISORY,), {"name": name})


def row_holder(conn: Connection, table: str) -> str | None:
    """Describe the connection that has locked rows of the table."""
    return _query(conn, (_ROW_MYSQL, _ROW_MARIADB), _names(table))


def table_holder(conn: Connection, table: str) -> str | None:
    """Describe the connection that uses the table."""
    # Running transactions are queried last: usually a transaction blocks a table lock.
    return _query(conn, (_TABLE_MYSQL, _TABLE_MARIADB, _ROW_MARIADB), _names(table))


def timeout_error(what: str, limit: str, *, resource: str, waited_s: float, holder: str | None) -> LockTimeoutError:
    """Return the error for a lock that could not be acquired within ``limit`` seconds; it names a known holder."""
    shown = f" ({holder})" if holder else ""
    return LockTimeoutError(
        f"{what} could not be acquired within {limit} s{shown}; nothing was written",
        resource=resource,
        waited_s=waited_s,
        holder=holder,
    )


def _names(table: str) -> dict[str, Any]:
    schema, _, name = table.rpartition(".")
    return {"schema": schema or None, "table": name}


def _query(conn: Connection, queries: tuple[TextClause, ...], params: Mapping[str, Any]) -> str | None:
    for query in queries:
        if conn.invalidated or conn.closed:
            return None
        try:
            row = conn.execute(query, params).mappings().first()
        except Exception as error:  # noqa: BLE001 - a missing view or privilege: try the next query
            logger.debug("lock holder not found", error=type(error).__name__)
            if outcome_unknown(error):
                invalidate(conn)  # its reply would be read as the reply to the next query
            continue
        if row is not None:
            return _describe(row)
    return None


def _describe(row: Mapping[Any, Any]) -> str:
    perhaps = "perhaps " if row.get("guess") else ""
    account = printable(f"{row['user']}@{row['host']}")
    return f"{perhaps}held by connection {row['id']}, {account}, {row['command']} for {row['seconds']} s"
