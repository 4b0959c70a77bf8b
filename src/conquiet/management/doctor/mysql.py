"""Checks of MySQL and MariaDB. Facts are gathered once; each check is a function of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conquiet.core.redaction import printable
from conquiet.core.versions import release_of
from conquiet.management.doctor.database import COMMON_CHECKS, SLOW_S, DatabaseFacts, examine, read_rows
from conquiet.management.doctor.findings import Finding

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_LONG_WAIT_S = 120
_SHORT_WAIT_S = 3
_MARIADB_OLDEST = (10, 6)
_MYSQL_OLDEST = (8, 0)
# InnoDB reports times in the zone of the server's machine; NOW() is in the session's zone, which may differ.
_SYSTEM_NOW = "CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')"


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLFacts(DatabaseFacts):
    """Facts about a server of MySQL or MariaDB.

    Attributes:
        non_transactional: Names of tables without transactions.
        long_transactions: Thread id and age in seconds.
        lock_waits: Waiting thread, blocking thread, and seconds waited.
    """

    product = "mysql"
    full_error = "too many connections"
    in_use = "were in use concurrently"

    non_transactional: tuple[str, ...] = ()
    long_transactions: tuple[tuple[int, int], ...] = ()
    lock_waits: tuple[tuple[int, int, int], ...] = ()

    @property
    def is_mariadb(self) -> bool:
        """True if the server is MariaDB."""
        return "mariadb" in self.settings.get("version", "").lower()


def examine_mysql(engine: "Engine", *, wanted_connections: int = 0, slow_s: int = SLOW_S) -> list[Finding]:
    """Gather the facts and return the findings; see ``database.examine``."""
    return examine(engine, gather, CHECKS, wanted_connections=wanted_connections, slow_s=slow_s)


def gather(connection: "Connection", slow_s: int) -> MySQLFacts:
    """Read the facts from the server with bounded queries."""
    settings = {name.lower(): value for name, value in read_rows(connection, "SHOW VARIABLES")}
    used = dict(read_rows(connection, "SHOW GLOBAL STATUS LIKE 'Max_used_connections'"))
    return MySQLFacts(
        settings=settings,
        connections=int(used.get("Max_used_connections", 0)),
        non_transactional=tuple(
            name
            for (name,) in read_rows(
                connection,
                "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
                "AND table_type = 'BASE TABLE' AND engine IN ('MyISAM', 'Aria', 'MEMORY', 'CSV') LIMIT 100",
            )
        ),
        long_transactions=_long_transactions(connection, slow_s),
        lock_waits=find_lock_waits(connection, mariadb="mariadb" in settings.get("version", "").lower()),
    )


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
        return read_rows(connection, statement)
    except SQLAlchemyError:
        connection.rollback()
        return []


def check_version(facts: MySQLFacts) -> Iterator[Finding]:
    """Report a server without SKIP LOCKED."""
    version = facts.settings.get("version", "0")
    oldest = _MARIADB_OLDEST if facts.is_mariadb else _MYSQL_OLDEST
    if release_of(version) < oldest:
        yield Finding.error(
            "mysql.version",
            f"the server is version {printable(version)}",
            "the outbox relay needs SELECT ... FOR UPDATE SKIP LOCKED",
            "update to MySQL 8.0 or MariaDB 10.6, or newer",
        )


def check_isolation(facts: MySQLFacts) -> Iterator[Finding]:
    """Report an isolation level that reads uncommitted data."""
    level = facts.settings.get("transaction_isolation") or facts.settings.get("tx_isolation", "")
    if level == "READ-UNCOMMITTED":
        yield Finding.error(
            "mysql.isolation",
            "the isolation level is READ UNCOMMITTED",
            "handlers see what others may still roll back",
            "SET GLOBAL transaction_isolation = 'REPEATABLE-READ', or 'READ-COMMITTED'",
        )
    elif level == "SERIALIZABLE":
        yield Finding.warning(
            "mysql.isolation",
            "the isolation level is SERIALIZABLE",
            "every SELECT locks, so workers deadlock far more often",
            "SET GLOBAL transaction_isolation = 'REPEATABLE-READ', and lock what you read with conquiet's locks",
        )


def check_lock_waits(facts: MySQLFacts) -> Iterator[Finding]:
    """Report lock timeouts that are too long or too short."""
    row_wait = facts.number("innodb_lock_wait_timeout")
    if row_wait > _LONG_WAIT_S:
        yield Finding.warning(
            "mysql.innodb_lock_wait_timeout",
            f"innodb_lock_wait_timeout is {row_wait} s",
            "one stuck transaction holds up every worker that needs its rows for as long",
            "SET GLOBAL innodb_lock_wait_timeout = 50, or less",
        )
    elif 0 < row_wait < _SHORT_WAIT_S:
        yield Finding.warning(
            "mysql.innodb_lock_wait_timeout",
            f"innodb_lock_wait_timeout is {row_wait} s",
            "ordinary contention fails instead of waiting for its turn",
            "SET GLOBAL innodb_lock_wait_timeout = 10, or more",
        )
    table_wait = facts.number("lock_wait_timeout")
    if table_wait > _LONG_WAIT_S:
        yield Finding.note(
            "mysql.lock_wait_timeout",
            f"lock_wait_timeout is {table_wait:,} s",
            "an ALTER TABLE behind a forgotten transaction waits that long, and other statements wait behind it; "
            "conquiet's own table locks have a separate limit",
            "SET GLOBAL lock_wait_timeout = 60",
        )


def check_durability(facts: MySQLFacts) -> Iterator[Finding]:
    """Report a setting that confirms a COMMIT before it is on disk."""
    value = facts.settings.get("innodb_flush_log_at_trx_commit", "1")
    if value != "1":
        yield Finding.warning(
            "mysql.durability",
            f"innodb_flush_log_at_trx_commit is {value}",
            "a crash loses up to a second of commits; their messages are acknowledged and not delivered again",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )


def check_sql_mode(facts: MySQLFacts) -> Iterator[Finding]:
    """Report a server that truncates values instead of refusing them."""
    mode = facts.settings.get("sql_mode", "STRICT_TRANS_TABLES")
    if "STRICT_TRANS_TABLES" not in mode and "STRICT_ALL_TABLES" not in mode:
        yield Finding.warning(
            "mysql.sql_mode",
            "sql_mode is not strict",
            "a value that is too long is cut in silence: two keys can become one",
            "add STRICT_TRANS_TABLES to sql_mode",
        )


def check_galera(facts: MySQLFacts) -> Iterator[Finding]:
    """Report locks that apply to one node of a cluster only."""
    if facts.settings.get("wsrep_on", "OFF").upper() in {"ON", "1"}:
        yield Finding.error(
            "mysql.galera",
            "this is a Galera node (wsrep_on)",
            "GET_LOCK and LOCK TABLES hold on one node only, and a COMMIT can fail with a deadlock",
            "let all writers use one node, or use row locks or optimistic updates with retry_on_conflict",
        )


def check_engines(facts: MySQLFacts) -> Iterator[Finding]:
    """Report tables without transactions."""
    if facts.non_transactional:
        shown = ", ".join(printable(name) for name in facts.non_transactional[:5])
        yield Finding.error(
            "mysql.engine",
            f"{len(facts.non_transactional)} tables have no transactions: {shown}",
            "writes of a failed handler stay there, and happen again with the next delivery",
            "ALTER TABLE ... ENGINE = InnoDB",
        )


def check_transactions(facts: MySQLFacts) -> Iterator[Finding]:
    """Report forgotten transactions and threads that wait for locks."""
    if facts.long_transactions:
        thread, age = facts.long_transactions[0]
        yield Finding.warning(
            "mysql.long_transactions",
            f"{len(facts.long_transactions)} transactions stay open for long; the oldest is thread {thread} "
            f"with {age:,} s",
            "its locks hold up others, and its snapshot keeps old rows from being cleaned up",
            f"inspect it with SHOW PROCESSLIST; KILL {thread} ends it",
        )
    for waiter, holder, age in facts.lock_waits:
        yield Finding.warning(
            "mysql.lock_waits",
            f"thread {waiter} has waited for {age} s for a lock that thread {holder} holds",
            "a worker is blocked",
            f"inspect thread {holder} with SHOW PROCESSLIST; KILL {holder} ends it",
        )


CHECKS: tuple[Callable[[MySQLFacts], Iterator[Finding]], ...] = (
    check_version,
    check_isolation,
    check_lock_waits,
    check_durability,
    check_sql_mode,
    check_galera,
    check_engines,
    check_transactions,
    *COMMON_CHECKS,
)
