"""Checks of PostgreSQL settings that cause trouble. Facts are gathered once; each check is a function of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from conquiet.core.redaction import printable
from conquiet.management.doctor.database_checks import check_inbox_and_outbox, check_overdue, check_pools
from conquiet.management.doctor.findings import Finding, Severity, run_checks

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_SETTINGS = ("server_version", "server_version_num", "default_transaction_isolation", "fsync", "full_page_writes",
    "synchronous_commit", "max_connections", "idle_in_transaction_session_timeout",
    "default_transaction_read_only")  # fmt: skip
_INDEXES = {
    "conquiet_inbox": frozenset({"conquiet_inbox_pkey", "conquiet_inbox_by_age"}),
    "conquiet_outbox": frozenset({"conquiet_outbox_pkey", "conquiet_outbox_by_due", "conquiet_outbox_by_key"}),
}
_OLDEST = 130_000
_SLOW_S = 60


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """Facts about the server.

    Attributes:
        settings: Settings of this session.
        is_standby: True if the server is in recovery.
        connections: Open connections.
        indexes: Names of the indexes, by existing inbox and outbox table.
        long_transactions: Process id, age in seconds, and True if it is idle.
        wanted_connections: Connections that the caller's pools may open in total; 0 if unknown.
        overdue: Age of the oldest unpublished row in seconds, by outbox target without a relay.
    """

    settings: dict[str, str]
    is_standby: bool
    connections: int
    indexes: dict[str, frozenset[str]]
    long_transactions: tuple[tuple[int, int, bool], ...]
    wanted_connections: int = 0
    overdue: dict[str, float] = field(default_factory=dict)


def examine_postgres(engine: "Engine", *, wanted_connections: int = 0, slow_s: int = _SLOW_S) -> list[Finding]:
    """Gather the facts and return the findings, the most severe first.

    Args:
        engine: The database.
        wanted_connections: Connections that the caller's pools may open in total; 0 if unknown.
        slow_s: A transaction older than this is reported as forgotten.
    """
    with engine.connect() as connection:
        facts = gather(connection, wanted_connections, slow_s)
    if _INDEXES["conquiet_outbox"] <= facts.indexes.get("conquiet_outbox", frozenset()):
        from conquiet.transactional.outbox import Outbox

        facts = replace(facts, overdue=Outbox().overdue(engine))
    return run_checks(CHECKS, facts)


def gather(connection: "Connection", wanted_connections: int, slow_s: int) -> PostgresFacts:
    """Read the facts from the server with bounded queries."""
    names = ", ".join(f"'{name}'" for name in _SETTINGS)
    tables = ", ".join(f"'{name}'" for name in _INDEXES)
    found: dict[str, set[str]] = {}
    for table, index in _rows(
        connection,
        "SELECT c.relname, i.indexname FROM pg_class c "  # noqa: S608 - constants
        "LEFT JOIN pg_indexes i ON i.tablename = c.relname AND i.schemaname = c.relnamespace::regnamespace::text "
        f"WHERE c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid) AND c.relname IN ({tables})",
    ):
        found.setdefault(table, set()).update({index} - {None})
    return PostgresFacts(
        settings=dict(_rows(connection, f"SELECT name, setting FROM pg_settings WHERE name IN ({names})")),  # noqa: S608
        is_standby=bool(_rows(connection, "SELECT pg_is_in_recovery()")[0][0]),
        connections=int(
            _rows(connection, "SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")[0][0]
        ),
        indexes={table: frozenset(indexes) for table, indexes in found.items()},
        long_transactions=tuple(
            (int(pid), int(age), bool(idle))
            for pid, age, idle in _rows(
                connection,
                "SELECT pid, EXTRACT(EPOCH FROM now() - xact_start), starts_with(state, 'idle in transaction') "  # noqa: S608
                "FROM pg_stat_activity WHERE backend_type = 'client backend' "
                f"AND xact_start < now() - INTERVAL '{int(slow_s)} seconds' ORDER BY xact_start LIMIT 20",
            )
        ),
        wanted_connections=wanted_connections,
    )


def _rows(connection: "Connection", statement: str) -> list[Any]:
    return [tuple(row) for row in connection.exec_driver_sql(statement)]


def check_version(facts: PostgresFacts) -> Iterator[Finding]:
    """Report a server without pg_current_xact_id()."""
    if int(facts.settings.get("server_version_num", _OLDEST)) < _OLDEST:
        yield Finding(
            "postgres.version",
            Severity.ERROR,
            f"the server is version {printable(facts.settings.get('server_version', ''))}",
            "DbSession queries the id of its transaction with functions of PostgreSQL 13",
            "update to PostgreSQL 13 or newer",
        )


def check_isolation(facts: PostgresFacts) -> Iterator[Finding]:
    """Report an isolation level under which workers fail instead of waiting."""
    level = facts.settings.get("default_transaction_isolation", "")
    if level in {"repeatable read", "serializable"}:
        yield Finding(
            "postgres.isolation",
            Severity.WARNING,
            f"default_transaction_isolation is {level}",
            "a run that waited for another run of its message fails with a conflict (40001) and is delivered again; "
            "at read committed it is skipped immediately",
            "ALTER DATABASE … SET default_transaction_isolation = 'read committed', and lock what you read",
        )


def check_writable(facts: PostgresFacts) -> Iterator[Finding]:
    """Report a standby, or a database that is read-only by default."""
    if facts.is_standby or facts.settings.get("default_transaction_read_only") == "on":
        yield Finding(
            "postgres.read_only",
            Severity.ERROR,
            "the server is a standby" if facts.is_standby else "default_transaction_read_only is on",
            "no handler can write: consumption pauses",
            "connect to the primary (target_session_attrs=read-write in the URL)",
        )


def check_durability(facts: PostgresFacts) -> Iterator[Finding]:
    """Report a setting that confirms a COMMIT before it is on disk."""
    for name in ("fsync", "full_page_writes"):
        if facts.settings.get(name) == "off":
            yield Finding(
                "postgres.durability",
                Severity.ERROR,
                f"{name} is off",
                "a crash of the machine can destroy the database",
                f"ALTER SYSTEM SET {name} = on, and reload",
            )
    if facts.settings.get("synchronous_commit") == "off":
        yield Finding(
            "postgres.synchronous_commit",
            Severity.WARNING,
            "synchronous_commit is off",
            "a crash loses commits; their messages are acknowledged and not delivered again",
            "ALTER DATABASE … SET synchronous_commit = on",
        )


def check_connections(facts: PostgresFacts) -> Iterator[Finding]:
    """Report pools that exceed ``max_connections``."""
    yield from check_pools(
        "postgres",
        wanted=facts.wanted_connections,
        used=facts.connections,
        limit=int(facts.settings.get("max_connections", 0)),
        error="too many clients already",
    )


def check_tables(facts: PostgresFacts) -> Iterator[Finding]:
    """Report missing tables and indexes of inbox and outbox."""
    yield from check_inbox_and_outbox("postgres", _INDEXES, facts.indexes)


def check_transactions(facts: PostgresFacts) -> Iterator[Finding]:
    """Report forgotten transactions."""
    if facts.long_transactions:
        pid, age, idle = facts.long_transactions[0]
        yield Finding(
            "postgres.long_transactions",
            Severity.WARNING,
            f"{len(facts.long_transactions)} transactions stay open for long; the oldest is process {pid} with "
            f"{age:,} s{', idle' if idle else ''}",
            "its locks hold up others, and the rows that the relay deletes cannot be cleaned up: the outbox grows slow",
            f"look at it in pg_stat_activity; SELECT pg_terminate_backend({pid}) ends it. "
            "idle_in_transaction_session_timeout bounds idle ones",
        )


def check_outbox(facts: PostgresFacts) -> Iterator[Finding]:
    """Report outbox rows that no relay publishes."""
    yield from check_overdue("postgres", facts.overdue)


CHECKS: tuple[Callable[[PostgresFacts], Iterator[Finding]], ...] = (
    check_version,
    check_isolation,
    check_writable,
    check_durability,
    check_connections,
    check_tables,
    check_transactions,
    check_outbox,
)
