"""Who holds the lock we did not get? Best effort: bounded, and never the reason for a failure.

What can be told depends on the server, so each question is asked in the ways we know and the first
answer counts. No query text is shown: it has values in it.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Connection

from conquiet.db.faults import reply_missing
from conquiet.kernel.redaction import printable

logger = logging.getLogger(__name__)

_WHO: Final = "p.id AS id, p.user AS user, p.host AS host, p.command AS command, p.time AS seconds"

# MariaDB and MySQL bound a statement differently, and each takes the other's way for a comment.
_BOUND: Final = "/*+ MAX_EXECUTION_TIME(1000) */"

_ADVISORY: Final = text(
    f"SELECT {_BOUND} {_WHO} FROM information_schema.processlist p WHERE p.id = IS_USED_LOCK(:name)"  # noqa: S608
)

# MySQL 8 and newer: every lock that is held, by table.
_ROW_MYSQL: Final = text(
    f"SELECT {_BOUND} {_WHO} FROM performance_schema.data_locks l "  # noqa: S608 - constants only
    "JOIN performance_schema.threads t ON t.thread_id = l.thread_id "
    "JOIN information_schema.processlist p ON p.id = t.processlist_id "
    "WHERE l.object_name = :table AND l.object_schema = COALESCE(:schema, DATABASE()) "
    "AND l.lock_type = 'RECORD' AND l.lock_status = 'GRANTED' AND p.id <> CONNECTION_ID() "
    "ORDER BY p.time DESC LIMIT 1"
)

# MariaDB shows no granted lock once nobody waits for it. The oldest other transaction that has
# locked rows is the likeliest; the answer says "perhaps".
_ROW_MARIADB: Final = text(
    f"SET STATEMENT max_statement_time = 1 FOR SELECT {_WHO}, 1 AS guess "  # noqa: S608 - constants only
    "FROM information_schema.innodb_trx x "
    "JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id "
    "WHERE x.trx_rows_locked > 0 AND p.id <> CONNECTION_ID() AND p.db = COALESCE(:schema, DATABASE()) "
    "AND :table <> '' ORDER BY x.trx_started LIMIT 1"
)

_TABLE_MYSQL: Final = text(
    f"SELECT {_BOUND} {_WHO} FROM performance_schema.metadata_locks m "  # noqa: S608 - constants only
    "JOIN performance_schema.threads t ON t.thread_id = m.owner_thread_id "
    "JOIN information_schema.processlist p ON p.id = t.processlist_id "
    "WHERE m.object_type = 'TABLE' AND m.object_name = :table "
    "AND m.object_schema = COALESCE(:schema, DATABASE()) "
    "AND m.lock_status = 'GRANTED' AND p.id <> CONNECTION_ID() ORDER BY p.time DESC LIMIT 1"
)

# MariaDB, where the plugin metadata_lock_info is loaded.
_TABLE_MARIADB: Final = text(
    f"SET STATEMENT max_statement_time = 1 FOR SELECT {_WHO} "  # noqa: S608 - constants only
    "FROM information_schema.metadata_lock_info m "
    "JOIN information_schema.processlist p ON p.id = m.thread_id "
    "WHERE m.table_name = :table AND m.table_schema = COALESCE(:schema, DATABASE()) "
    "AND p.id <> CONNECTION_ID() ORDER BY p.time DESC LIMIT 1"
)


def advisory_holder(conn: Connection, name: str) -> str | None:
    """Say which connection holds the advisory lock, if any still does."""
    return _ask(conn, (_ADVISORY,), {"name": name})


def row_holder(conn: Connection, table: str) -> str | None:
    """Say which connection has rows of the table locked."""
    return _ask(conn, (_ROW_MYSQL, _ROW_MARIADB), _names(table))


def table_holder(conn: Connection, table: str) -> str | None:
    """Say which connection uses the table."""
    # Running transactions are looked at last: they are what usually keeps a table from being locked.
    return _ask(conn, (_TABLE_MYSQL, _TABLE_MARIADB, _ROW_MARIADB), _names(table))


def said(holder: str | None) -> str:
    """Return the holder as part of a sentence."""
    return f" ({holder})" if holder else ""


def _names(table: str) -> dict[str, Any]:
    schema, _, name = table.rpartition(".")
    return {"schema": schema or None, "table": name}


def _ask(conn: Connection, ways: tuple[TextClause, ...], params: Mapping[str, Any]) -> str | None:
    for way in ways:
        if conn.invalidated or conn.closed:
            return None
        try:
            row = conn.execute(way, params).mappings().first()
        except Exception as error:  # noqa: BLE001 - a view that is not there, a right that we lack: ask the next way
            logger.debug("lock holder not found out", exc_info=False)
            if reply_missing(error):
                conn.invalidate()  # its reply would be taken for that to the next question
            continue
        if row is not None:
            return _described(row)
    return None


def _described(row: Mapping[Any, Any]) -> str:
    perhaps = "perhaps " if row.get("guess") else ""
    who = printable(f"{row['user']}@{row['host']}")
    return f"{perhaps}held by connection {row['id']}, {who}, {row['command']} for {row['seconds']} s"
