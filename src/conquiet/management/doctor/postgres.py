"""Checks of PostgreSQL settings that cause trouble. Facts are gathered once; each check is a function of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conquiet.core.redaction import printable
from conquiet.management.doctor.database import COMMON_CHECKS, SLOW_S, DatabaseFacts, examine, read_rows
from conquiet.management.doctor.findings import Finding

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_OLDEST = 130_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresFacts(DatabaseFacts):
    """Facts about a server of PostgreSQL, with the settings of this session.

    Attributes:
        is_standby: True if the server is in recovery.
        long_transactions: Process id, age in seconds, and True if it is idle.
    """

    product = "postgres"
    full_error = "too many clients already"

    is_standby: bool
    long_transactions: tuple[tuple[int, int, bool], ...] = ()


def examine_postgres(engine: "Engine", *, wanted_connections: int = 0, slow_s: int = SLOW_S) -> list[Finding]:
    """Gather the facts and return the findings; see ``database.examine``."""
    return examine(engine, gather, CHECKS, wanted_connections=wanted_connections, slow_s=slow_s)


def gather(connection: "Connection", slow_s: int) -> PostgresFacts:
    """Read the facts from the server with bounded queries."""
    return PostgresFacts(
        settings=dict(read_rows(connection, "SELECT name, setting FROM pg_settings")),
        is_standby=bool(read_rows(connection, "SELECT pg_is_in_recovery()")[0][0]),
        connections=int(
            read_rows(connection, "SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")[0][0]
        ),
        long_transactions=tuple(
            (int(pid), int(age), bool(idle))
            for pid, age, idle in read_rows(
                connection,
                "SELECT pid, EXTRACT(EPOCH FROM now() - xact_start), starts_with(state, 'idle in transaction') "  # noqa: S608
                "FROM pg_stat_activity WHERE backend_type = 'client backend' "
                f"AND xact_start < now() - INTERVAL '{int(slow_s)} seconds' ORDER BY xact_start LIMIT 20",
            )
        ),
    )


def check_version(facts: PostgresFacts) -> Iterator[Finding]:
    """Report a server without pg_current_xact_id()."""
    if int(facts.settings.get("server_version_num", _OLDEST)) < _OLDEST:
        yield Finding.error(
            "postgres.version",
            f"the server is version {printable(facts.settings.get('server_version', ''))}",
            "DbSession queries the id of its transaction with functions of PostgreSQL 13",
            "update to PostgreSQL 13 or newer",
        )


def check_isolation(facts: PostgresFacts) -> Iterator[Finding]:
    """Report an isolation level under which workers fail instead of waiting."""
    level = facts.settings.get("default_transaction_isolation", "")
    if level in {"repeatable read", "serializable"}:
        yield Finding.warning(
            "postgres.isolation",
            f"default_transaction_isolation is {level}",
            "a run that waited for another run of its message fails with a conflict (40001) and is delivered again; "
            "at read committed it is skipped immediately",
            "ALTER DATABASE … SET default_transaction_isolation = 'read committed', and lock what you read",
        )


def check_writable(facts: PostgresFacts) -> Iterator[Finding]:
    """Report a standby, or a database that is read-only by default."""
    if facts.is_standby or facts.settings.get("default_transaction_read_only") == "on":
        yield Finding.error(
            "postgres.read_only",
            "the server is a standby" if facts.is_standby else "default_transaction_read_only is on",
            "no handler can write: consumption pauses",
            "connect to the primary (target_session_attrs=read-write in the URL)",
        )


def check_durability(facts: PostgresFacts) -> Iterator[Finding]:
    """Report a setting that confirms a COMMIT before it is on disk."""
    for name in ("fsync", "full_page_writes"):
        if facts.settings.get(name) == "off":
            yield Finding.error(
                "postgres.durability",
                f"{name} is off",
                "a crash of the machine can destroy the database",
                f"ALTER SYSTEM SET {name} = on, and reload",
            )
    if facts.settings.get("synchronous_commit") == "off":
        yield Finding.warning(
            "postgres.synchronous_commit",
            "synchronous_commit is off",
            "a crash loses commits; their messages are acknowledged and not delivered again",
            "ALTER DATABASE … SET synchronous_commit = on",
        )


def check_transactions(facts: PostgresFacts) -> Iterator[Finding]:
    """Report forgotten transactions."""
    if facts.long_transactions:
        pid, age, idle = facts.long_transactions[0]
        yield Finding.warning(
            "postgres.long_transactions",
            f"{len(facts.long_transactions)} transactions stay open for long; the oldest is process {pid} with "
            f"{age:,} s{', idle' if idle else ''}",
            "its locks hold up others, and the rows that the relay deletes cannot be cleaned up: the outbox grows slow",
            f"look at it in pg_stat_activity; SELECT pg_terminate_backend({pid}) ends it. "
            "idle_in_transaction_session_timeout bounds idle ones",
        )


CHECKS: tuple[Callable[[PostgresFacts], Iterator[Finding]], ...] = (
    check_version,
    check_isolation,
    check_writable,
    check_durability,
    check_transactions,
    *COMMON_CHECKS,
)
