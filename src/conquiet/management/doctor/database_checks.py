"""Checks for all databases. ``product`` is the first part of a check's name."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from conquiet.core.redaction import printable
from conquiet.management.doctor.findings import Finding, Severity

_CROWDED = 0.8


def check_pools(
    product: str, *, wanted: int, used: int, limit: int, error: str, in_use: str = "are in use"
) -> Iterator[Finding]:
    """Report pools that exceed ``max_connections``, or a server close to that limit.

    Args:
        product: The database.
        wanted: Connections that the pools may open.
        used: Open connections, now or at most so far.
        limit: ``max_connections``; 0 if unknown.
        error: Error message of a server that is full.
        in_use: Meaning of ``used``, for the text.
    """
    if limit and wanted > limit:
        yield Finding(
            f"{product}.max_connections",
            Severity.ERROR,
            f"the pools may open {wanted} connections, and max_connections is {limit}",
            f"workers fail with {error!r} under load",
            "smaller pools (pool_size, max_overflow), fewer processes, or a larger max_connections",
        )
    elif limit and used > limit * _CROWDED:
        yield Finding(
            f"{product}.max_connections",
            Severity.WARNING,
            f"{used} of {limit} connections {in_use}",
            f"the next peak fails with {error!r}",
            "smaller pools (pool_size, max_overflow), or a larger max_connections",
        )


def check_inbox_and_outbox(
    product: str, needed: Mapping[str, AbstractSet[str]], found: Mapping[str, AbstractSet[str]]
) -> Iterator[Finding]:
    """Report missing tables and indexes. Both mappings are indexes by table."""
    missing = [table for table in needed if table not in found]
    if missing:
        yield Finding(
            f"{product}.tables",
            Severity.WARNING,
            f"there is no table {' and no '.join(missing)}",
            "without the inbox a redelivered message has its effect twice; without the outbox messages get lost "
            "between COMMIT and publishing",
            "conquiet db init",
        )
    for table, indexes in found.items():
        absent = sorted(needed[table] - indexes)
        if absent:
            yield Finding(
                f"{product}.indexes",
                Severity.ERROR,
                f"{table} lacks the index {', '.join(absent)}",
                "without its primary key the inbox lets duplicates through; without the others purge and relay "
                "read the whole table",
                "conquiet db migrate; a missing primary key you have to add yourself",
            )


def check_overdue(product: str, overdue: Mapping[str, float]) -> Iterator[Finding]:
    """Report outbox rows that no relay publishes. ``overdue``: age of the oldest row in seconds, by target."""
    for target, age_s in sorted(overdue.items()):
        yield Finding(
            f"{product}.outbox_overdue",
            Severity.WARNING,
            f"the outbox has rows for the target {printable(target)!r} that are due since long; the oldest is "
            f"{age_s:,.0f} s old",
            "no relay serves this target (a typo in its name, or the relay does not run), or it is behind",
            "compare the name with the targets of your OutboxRelay, and see that the relay runs",
        )
