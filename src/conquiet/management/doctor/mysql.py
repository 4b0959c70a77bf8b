"""Checks of MySQL and MariaDB. Facts are gathered once; each check is a function of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from conquiet.core.redaction import printable
from conquiet.core.versions import release_of
from conquiet.management.doctor.database_checks import check_inbox_and_outbox, check_overdue, check_pools
from conquiet.management.doctor.findings import Finding, Severity, run_checks

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_VARIABLES = (
    "version", "transaction_isolation", "tx_isolation", "innodb_lock_wait_timeout", "lock_wait_timeout",
    "max_connections", "sql_mode", "innodb_flush_log_at_trx_commit", "wsrep_on",
)  # fmt: skip
_INDEXES = {
    "conquiet_inbox": frozenset({"PRIMARY", "by_age"}),
    "conquiet_outbox": frozenset({"PRIMARY", "by_due", "by_key"}),
}
_SLOW_S = 60
_LONG_WAIT_S = 120
_SHORT_WAIT_S = 3
_MARIADB_OLDEST = (10, 6)
_MYSQL_OLDEST = (8, 0)
# InnoDB reports times in the zone of the server's machine; NOW() is in the session's zone, which may differ.
_SYSTEM_NOW = "CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')"


@dataclass(frozen=True, slots=True)
class MySQLFacts:
    """Facts about the server.

    Attributes:
        indexes: Names of the indexes, by existing inbox and outbox table.
        long_transactions: Thread id and age in seconds.
        lock_waits: Waiting thread, blocking thread, and seconds waited.
        wanted_connections: Connections that the caller's pools may open in total; 0 if unknown.
        overdue: Age of the oldest unpublished row in seconds, by outbox target without a relay.
    """

    variables: dict[str, str]
    connections_used: int
    non_transactional: tuple[str, ...]
    indexes: dict[str, frozenset[str]]
    long_transactions: tuple[tuple[int, int], ...]
    lock_waits: tuple[tuple[int, int, int], ...]
    wanted_connections: int = 0
    overdue: dict[str, float] = field(default_factory=dict)

    @property
    def is_mariadb(self) -> bool:
        """Name of the database product."""
        return "mariadb" in self.variables.get("version", "").lower()


def examine_mysql(engine: "Engine", *, wanted_connections: int = 0, slow_s: int = _SLOW_S) -> list[Finding]:
    """Gather the facts and return the findings, the most severe first.

    Args:
        engine: The database.
        wanted_connections: Connections that the caller's pools may open in total; 0 if unknown.
        slow_s: A transaction older than this is reported as forgotten.
    """
    with engine.connect() as connection:
        facts = gather(connection, wanted_connections, slow_s)
    if {"by_due", "by_key"} <= facts.indexes.get("conquiet_outbox", frozenset()):
        from conquiet.transactional.outbox import Outbox

        facts = replace(facts, overdue=Outbox().overdue(engine))
    return run_checks(CHECKS, facts)


def gather(connection: "Connection", wanted_connections: int, slow_s: int) -> MySQLFacts:
    """Read the facts from the server with bounded queries."""
    variables = {
        name.lower(): value for name, value in _rows(connection, "SHOW VARIABLES") if name.lower() in _VARIABLES
    }
    used = dict(_rows(connection, "SHOW GLOBAL STATUS LIKE 'Max_used_connections'"))
    return MySQLFacts(
        variables=variables,
        connections_used=int(used.get("Max_used_connections", 0)),
        non_transactional=tuple(
            name
            for (name,) in _rows(
                connection,
                "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
                "AND table_type = 'BASE TABLE' AND engine IN ('MyISAM', 'Aria', 'MEMORY', 'CSV') LIMIT 100",
            )
        ),
        indexes=_indexes(connection),
        long_transactions=_long_transactions(connection, slow_s),
        lock_waits=find_lock_waits(connection, mariadb="mariadb" in variables.get("version", "").lower()),
        wanted_connections=wanted_connections,
    )


def _rows(connection: "Connection", statement: str) -> list[Any]:
    from sqlalchemy import text

    return [tuple(row) for row in connection.execute(text(statement))]


def _indexes(connection: "Connection") -> dict[str, frozenset[str]]:
    names = ", ".join(f"'{table}'" for table in _INDEXES)
    found: dict[str, set[str]] = {}
    for table, index in _rows(
        connection,
        "SELECT t.table_name, s.index_name FROM information_schema.tables t "  # noqa: S608 - constants
        "LEFT JOIN information_schema.statistics s ON s.table_schema = t.table_schema AND s.table_name = t.table_name "
        f"WHERE t.table_schema = DATABASE() AND t.table_name IN ({names})",
    ):
        found.setdefault(table, set()).update({index} - {None})
    return {table: frozenset(indexes) for table, indexes in found.items()}


def _long_transactions(connection: "Connection", slow_s: int) -> tuple[tuple[int, int], ...]:
    return tuple(
        (int(thread), int(age))
        for thread, age in _optional(
            connection,
            f"SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, {_SYSTEM_NOW}) "  # noqa: S608 - constants
            "FROM information_schema.innodb_trx "
            f"WHERE trx_started < {_SYSTEM_NOW} - INTERVAL {int(slow_s)} SECOND ORDER BY trx_started LIMIT 20",
        )
    )


def find_lock_waits(connection: "Connection", *, mariadb: bool) -> tuple[tuple[int, int, int], ...]:
    """Return waiting thread, blocking thread and seconds waited; nothing if this user may not see lock waits."""
    waits = (
        "information_schema.innodb_lock_waits w "
        "JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id "
        "JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id"
        if mariadb
        else "performance_schema.data_lock_waits w "
        "JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_engine_transaction_id "
        "JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_engine_transaction_id"
    )
    return tuple(
        (int(waiter), int(holder), int(age or 0))
        for waiter, holder, age in _optional(
            connection,
            "SELECT DISTINCT r.trx_mysql_thread_id, b.trx_mysql_thread_id, "  # noqa: S608 - constants
            f"TIMESTAMPDIFF(SECOND, r.trx_wait_started, {_SYSTEM_NOW}) FROM {waits} LIMIT 20",
        )
    )


def _optional(connection: "Connection", statement: str) -> list[Any]:
    """Return the rows; nothing if this user may not see them."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return _rows(connection, statement)
    except SQLAlchemyError:
        connection.rollback()
        return []


def _seconds(facts: MySQLFacts, name: str) -> int:
    return int(float(facts.variables.get(name, 0) or 0))


def check_version(facts: MySQLFacts) -> Iterator[Finding]:
    """Report a server without SKIP LOCKED."""
    version = facts.variables.get("version", "0")
    oldest = _MARIADB_OLDEST if facts.is_mariadb else _MYSQL_OLDEST
    if release_of(version) < oldest:
        yield Finding(
            "mysql.version",
            Severity.ERROR,
            f"the server is version {printable(version)}",
            "the outbox relay needs SELECT ... FOR UPDATE SKIP LOCKED",
            "update to MySQL 8.0 or MariaDB 10.6, or newer",
        )


def check_isolation(facts: MySQLFacts) -> Iterator[Finding]:
    """Report an isolation level that reads uncommitted data."""
    level = facts.variables.get("transaction_isolation") or facts.variables.get("tx_isolation", "")
    if level == "READ-UNCOMMITTED":
        yield Finding(
            "mysql.isolation",
            Severity.ERROR,
            "the isolation level is READ UNCOMMITTED",
            "handlers see what others may still roll back",
            "SET GLOBAL transaction_isolation = 'REPEATABLE-READ', or 'READ-COMMITTED'",
        )
    elif level == "SERIALIZABLE":
        yield Finding(
            "mysql.isolation",
            Severity.WARNING,
            "the isolation level is SERIALIZABLE",
            "every SELECT locks, so workers deadlock far more often",
            "SET GLOBAL transaction_isolation = 'REPEATABLE-READ', and lock what you read with conquiet's locks",
        )


def check_lock_waits(facts: MySQLFacts) -> Iterator[Finding]:
    """Report lock timeouts that are too long or too short."""
    row_wait = _seconds(facts, "innodb_lock_wait_timeout")
    if row_wait > _LONG_WAIT_S:
        yield Finding(
            "mysql.innodb_lock_wait_timeout",
            Severity.WARNING,
            f"innodb_lock_wait_timeout is {row_wait} s",
            "one stuck transaction holds up every worker that needs its rows for as long",
            "SET GLOBAL innodb_lock_wait_timeout = 50, or less",
        )
    elif 0 < row_wait < _SHORT_WAIT_S:
        yield Finding(
            "mysql.innodb_lock_wait_timeout",
            Severity.WARNING,
            f"innodb_lock_wait_timeout is {row_wait} s",
            "ordinary contention fails instead of waiting for its turn",
            "SET GLOBAL innodb_lock_wait_timeout = 10, or more",
        )
    table_wait = _seconds(facts, "lock_wait_timeout")
    if table_wait > _LONG_WAIT_S:
        yield Finding(
            "mysql.lock_wait_timeout",
            Severity.NOTE,
            f"lock_wait_timeout is {table_wait:,} s",
            "an ALTER TABLE behind a forgotten transaction waits that long, and other statements wait behind it; "
            "conquiet's own table locks have a separate limit",
            "SET GLOBAL lock_wait_timeout = 60",
        )


def check_connections(facts: MySQLFacts) -> Iterator[Finding]:
    """Report pools that exceed ``max_connections``."""
    yield from check_pools(
        "mysql",
        wanted=facts.wanted_connections,
        used=facts.connections_used,
        limit=_seconds(facts, "max_connections"),
        error="too many connections",
        in_use="were in use concurrently",
    )


def check_durability(facts: MySQLFacts) -> Iterator[Finding]:
    """Report a setting that confirms a COMMIT before it is on disk."""
    value = facts.variables.get("innodb_flush_log_at_trx_commit", "1")
    if value != "1":
        yield Finding(
            "mysql.durability",
            Severity.WARNING,
            f"innodb_flush_log_at_trx_commit is {value}",
            "a crash loses up to a second of commits; their messages are acknowledged and not delivered again",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )


def check_sql_mode(facts: MySQLFacts) -> Iterator[Finding]:
    """Report a server that truncates values instead of refusing them."""
    mode = facts.variables.get("sql_mode", "STRICT_TRANS_TABLES")
    if "STRICT_TRANS_TABLES" not in mode and "STRICT_ALL_TABLES" not in mode:
        yield Finding(
            "mysql.sql_mode",
            Severity.WARNING,
            "sql_mode is not strict",
            "a value that is too long is cut in silence: two keys can become one",
            "add STRICT_TRANS_TABLES to sql_mode",
        )


def check_galera(facts: MySQLFacts) -> Iterator[Finding]:
    """Report locks that apply to one node of a cluster only."""
    if facts.variables.get("wsrep_on", "OFF").upper() in {"ON", "1"}:
        yield Finding(
            "mysql.galera",
            Severity.ERROR,
            "this is a Galera node (wsrep_on)",
            "GET_LOCK and LOCK TABLES hold on one node only, and a COMMIT can fail with a deadlock",
            "let all writers use one node, or use row locks or optimistic updates with retry_on_conflict",
        )


def check_engines(facts: MySQLFacts) -> Iterator[Finding]:
    """Report tables without transactions."""
    if facts.non_transactional:
        shown = ", ".join(printable(name) for name in facts.non_transactional[:5])
        yield Finding(
            "mysql.engine",
            Severity.ERROR,
            f"{len(facts.non_transactional)} tables have no transactions: {shown}",
            "writes of a failed handler stay there, and happen again with the next delivery",
            "ALTER TABLE ... ENGINE = InnoDB",
        )


def check_tables(facts: MySQLFacts) -> Iterator[Finding]:
    """Report missing tables and indexes of inbox and outbox."""
    yield from check_inbox_and_outbox("mysql", _INDEXES, facts.indexes)


def check_outbox(facts: MySQLFacts) -> Iterator[Finding]:
    """Report outbox rows that no relay publishes."""
    yield from check_overdue("mysql", facts.overdue)


def check_transactions(facts: MySQLFacts) -> Iterator[Finding]:
    """Report forgotten transactions and threads that wait for locks."""
    if facts.long_transactions:
        thread, age = facts.long_transactions[0]
        yield Finding(
            "mysql.long_transactions",
            Severity.WARNING,
            f"{len(facts.long_transactions)} transactions stay open for long; the oldest is thread {thread} "
            f"with {age:,} s",
            "its locks hold up others, and its snapshot keeps old rows from being cleaned up",
            f"inspect it with SHOW PROCESSLIST; KILL {thread} ends it",
        )
    for waiter, holder, age in facts.lock_waits:
        yield Finding(
            "mysql.lock_waits",
            Severity.WARNING,
            f"thread {waiter} has waited for {age} s for a lock that thread {holder} holds",
            "a worker is blocked",
            f"inspect thread {holder} with SHOW PROCESSLIST; KILL {holder} ends it",
        )


CHECKS: tuple[Callable[[MySQLFacts], Iterator[Finding]], ...] = (
    check_version,
    check_isolation,
    check_lock_waits,
    check_connections,
    check_durability,
    check_sql_mode,
    check_galera,
    check_engines,
    check_tables,
    check_outbox,
    check_transactions,
)
