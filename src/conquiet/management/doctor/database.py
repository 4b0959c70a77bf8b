"""Checks that are the same for every database: pools, tables of inbox and outbox, their schema and backlog.

``mysql`` and ``postgres`` gather the facts and add the checks of their settings.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive
from conquiet.management.doctor.findings import Finding, Severity, run_checks

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from conquiet.transactional.migrations import TableLayout

F = TypeVar("F", bound="DatabaseFacts")

SLOW_S = 60
"""A transaction older than this is reported as forgotten."""

_CROWDED = 0.8
_MIGRATE = "conquiet db migrate (--dry-run prints the statements); it is safe while workers run"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """Facts about any database.

    Attributes:
        product: First part of the names of its checks.
        full_error: Error message of a server without free connections.
        in_use: Meaning of ``connections``, for the text.
        settings: Settings of the server, by name.
        connections: Open connections, now or at most so far.
        wanted_connections: Connections that the caller's pools may open in total; 0 if unknown.
        layouts: Inbox and outbox, compared with what this version expects.
        without_key: Names of tables without a primary key.
        overdue: Age of the oldest unpublished row in seconds, by outbox target without a relay.
    """

    product: ClassVar[str]
    full_error: ClassVar[str]
    in_use: ClassVar[str] = "are in use"

    settings: Mapping[str, str]
    connections: int
    wanted_connections: int = 0
    layouts: "tuple[TableLayout, ...]" = ()
    without_key: AbstractSet[str] = frozenset()
    overdue: Mapping[str, float] | None = None

    def number(self, name: str) -> int:
        """Return a setting as a whole number; 0 if it is unknown."""
        return int(float(self.settings.get(name, 0) or 0))


def read_rows(connection: "Connection", statement: str) -> list[Any]:
    """Return the rows of a statement."""
    from sqlalchemy import text

    return [tuple(row) for row in connection.execute(text(statement))]


def examine(
    engine: "Engine",
    gather: "Callable[[Connection, int], F]",
    checks: Iterable[Callable[[F], Iterator[Finding]]],
    *,
    wanted_connections: int,
    slow_s: int,
) -> list[Finding]:
    """Gather the facts and return the findings, the most severe first.

    Args:
        engine: The database.
        gather: Reads the facts from the server, with ``slow_s``.
        checks: The checks of this kind of server.
        wanted_connections: Connections that the caller's pools may open in total; 0 if unknown.
        slow_s: A transaction older than this is reported as forgotten.
    """
    with engine.connect() as connection:
        facts = replace(gather(connection, slow_s), wanted_connections=wanted_connections)
    return run_checks(checks, _with_tables(facts, engine))


def _with_tables(facts: F, engine: "Engine") -> F:
    """Add the layout of inbox and outbox, and the overdue rows of an outbox that has its indexes.

    Without them the query reads the whole table.
    """
    from sqlalchemy import inspect

    from conquiet.transactional.migrations import table_layouts
    from conquiet.transactional.outbox import Outbox

    layouts = table_layouts(engine)
    keys = {one.table: inspect(engine).get_pk_constraint(one.table) for one in layouts if one.exists}
    outbox = layouts[1]
    return replace(
        facts,
        layouts=layouts,
        without_key={table for table, key in keys.items() if not key["constrained_columns"]},
        overdue=Outbox().overdue(engine) if outbox.exists and not outbox.missing_indexes else None,
    )


def check_connections(facts: DatabaseFacts) -> Iterator[Finding]:
    """Report pools that exceed ``max_connections``, or a server close to that limit."""
    limit = facts.number("max_connections")
    if limit and facts.wanted_connections > limit:
        yield Finding.error(
            f"{facts.product}.max_connections",
            f"the pools may open {facts.wanted_connections} connections, and max_connections is {limit}",
            f"workers fail with {facts.full_error!r} under load",
            "smaller pools (pool_size, max_overflow), fewer processes, or a larger max_connections",
        )
    elif limit and facts.connections > limit * _CROWDED:
        yield Finding.warning(
            f"{facts.product}.max_connections",
            f"{facts.connections} of {limit} connections {facts.in_use}",
            f"the next peak fails with {facts.full_error!r}",
            "smaller pools (pool_size, max_overflow), or a larger max_connections",
        )


def check_tables(facts: DatabaseFacts) -> Iterator[Finding]:
    """Report missing tables and indexes of inbox and outbox."""
    missing = [layout.table for layout in facts.layouts if not layout.exists]
    if missing:
        yield Finding.warning(
            f"{facts.product}.tables",
            f"there is no table {' and no '.join(missing)}",
            "without the inbox a redelivered message has its effect twice; without the outbox messages get lost "
            "between COMMIT and publishing",
            "conquiet db init",
        )
    for layout in facts.layouts:
        absent = (*layout.missing_indexes, *(["PRIMARY KEY"] if layout.table in facts.without_key else []))
        if absent:
            yield Finding.error(
                f"{facts.product}.indexes",
                f"{layout.table} lacks the index {', '.join(absent)}",
                "without its primary key the inbox lets duplicates through; without the others purge and relay "
                "read the whole table",
                "conquiet db migrate; a missing primary key you have to add yourself",
            )


def check_outbox(facts: DatabaseFacts) -> Iterator[Finding]:
    """Report outbox rows that no relay publishes."""
    for target, age_s in sorted((facts.overdue or {}).items()):
        yield Finding.warning(
            f"{facts.product}.outbox_overdue",
            f"the outbox has rows for the target {printable(target)!r} that are due since long; the oldest is "
            f"{age_s:,.0f} s old",
            "no relay serves this target (a typo in its name, or the relay does not run), or it is behind",
            "compare the name with the targets of your OutboxRelay, and see that the relay runs",
        )


def check_schema(facts: DatabaseFacts) -> Iterator[Finding]:
    """Report tables that another version created."""
    return _check_layouts(facts.layouts)


COMMON_CHECKS: tuple[Callable[[DatabaseFacts], Iterator[Finding]], ...] = (
    check_connections,
    check_tables,
    check_schema,
    check_outbox,
)


def examine_schema(engine: "Engine") -> list[Finding]:
    """Report what existing tables lack, compared with the schema of this version."""
    from conquiet.transactional.migrations import table_layouts

    return run_checks((_check_layouts,), table_layouts(engine))


def _check_layouts(layouts: "tuple[TableLayout, ...]") -> Iterator[Finding]:
    from conquiet.transactional.schema import SCHEMA_VERSION

    for layout in layouts:
        if layout.is_newer:
            yield Finding.note(
                "database.schema",
                f"{layout.table} has schema {layout.recorded}, and this version of conquiet knows {SCHEMA_VERSION}",
                "a later version has changed the table; its changes are additions, so this version still works",
                "update conquiet here too",
            )
        elif layout.missing_columns:
            needed = layout.missing_columns != ("digest",)  # the inbox works without this column
            yield Finding(
                "database.schema",
                Severity.ERROR if needed else Severity.WARNING,
                f"{layout.table} is behind schema {SCHEMA_VERSION}: it lacks {', '.join(layout.missing_columns)}",
                "statements on it fail" if needed else "a message with a repeated entry id counts as a duplicate",
                _MIGRATE,
            )
        elif layout.is_behind and not layout.missing_indexes:  # missing indexes are a finding of each database
            yield Finding.warning(
                "database.schema",
                f"{layout.table} has schema {layout.recorded}, and this version of conquiet expects {SCHEMA_VERSION}",
                "the next version may need what this migration makes",
                _MIGRATE,
            )


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Database connections of a deployment.

    Attributes:
        pool: Most connections of one process: ``pool_size`` + ``max_overflow`` of all its engines.
        processes: Processes on each host.
        hosts: Number of hosts.
        concurrency: Concurrent handlers in a process; for batch handlers, concurrent batches. 0 if unknown.
    """

    pool: int
    processes: int = 1
    hosts: int = 1
    concurrency: int = 0

    def __post_init__(self) -> None:
        for name in ("pool", "processes", "hosts"):
            require_positive(name, getattr(self, name))

    @property
    def connections(self) -> int:
        """Most connections of all processes. Each process has one more for its relay."""
        return (self.pool + 1) * self.processes * self.hosts


def examine_pools(plan: PoolPlan) -> list[Finding]:
    """Return the findings about the plan. The check of the server compares it with ``max_connections``."""
    if plan.concurrency <= plan.pool:
        return []
    return [
        Finding.warning(
            "database.pool",
            f"a pool lends at most {plan.pool} connections, and {plan.concurrency} handlers run concurrently",
            "handlers wait for a connection while their messages are leased, and fail when the pool's timeout is over",
            f"call create_engine with pool_size={plan.concurrency}, or lower the concurrency to {plan.pool}",
        )
    ]
