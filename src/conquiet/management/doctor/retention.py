"""Checks of what is kept: groups that hold back trimming, and inbox rows against what can bring a message back.

An inbox row protects against a second effect for as long as it exists. So it must be kept for longer than any copy of
its message: an entry that is pending or undelivered, a delayed retry, a dead letter that an operator may replay.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from conquiet.core.redaction import printable
from conquiet.core.validation import require_table
from conquiet.management.doctor.findings import Finding, Severity, run_checks
from conquiet.redis_transport.hash_tags import slot_prefix
from conquiet.redis_transport.ids import milliseconds_of
from conquiet.redis_transport.replies import text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.management.doctor.redis_facts import RedisFacts
    from conquiet.management.models import GroupReport, StreamReport
    from conquiet.management.redis_admin import RedisAdmin

_DAY_S = 86_400.0
_INBOX = "conquiet_inbox"


def check_unread_groups(facts: "RedisFacts") -> Iterator[Finding]:
    """A group that no consumer reads: trimming stops at the first entry that it needs."""
    for stream in facts.streams:
        for group in stream.groups:
            waiting = group.lag if group.lag is not None else facts.counted.get((stream.key, group.name), 0)
            old = (group.oldest_age_s or 0) > facts.limits.max_age_s
            if not group.consumers and not group.pending and waiting and old and _is_left_behind(stream, group):
                names = f"{printable(stream.key)} {printable(group.name)}"
                yield Finding(
                    "redis.unread_group",
                    Severity.WARNING,
                    f"no consumer reads group {printable(group.name)!r} of {printable(stream.key)!r}, which has "
                    f"{waiting:,} entries to do",
                    "none of them can be removed from the stream, and every new one is added to them",
                    f"start its consumers; if it was only created to produce, destroy it: redis-cli XGROUP DESTROY "
                    f"{names}",
                )


def _is_left_behind(stream: "StreamReport", group: "GroupReport") -> bool:
    """Return whether the group never read, or another one of the stream is ahead of it."""
    others = [other.last_delivered_id for other in stream.groups if other is not group]
    return group.last_delivered_id == "0-0" or any(
        milliseconds_of(other) > milliseconds_of(group.last_delivered_id) for other in others
    )


@dataclass(frozen=True, slots=True)
class Comeback:
    """Something that can bring messages of a stream back.

    Attributes:
        stream: The stream.
        what: What it is.
        after_s: How long after its first handling a message may come back by it.
    """

    stream: str
    what: str
    after_s: float


@dataclass(frozen=True, slots=True)
class RetentionFacts:
    """What is kept, and what can come back.

    Attributes:
        retention_s: How long inbox rows are kept.
        oldest_row_s: Age of the oldest inbox row; None if there is none.
        comebacks: By stream.
    """

    retention_s: float
    oldest_row_s: float | None
    comebacks: tuple[Comeback, ...]


def examine_inbox(
    engine: "Engine",
    comebacks: tuple[Comeback, ...] = (),
    *,
    retention_s: float = 30 * _DAY_S,
    table: str = _INBOX,
) -> list[Finding]:
    """Return what is wrong with the retention of an inbox; nothing if there is no inbox table.

    Args:
        engine: The database.
        comebacks: What ``find_comebacks`` returned for the Redis whose messages it protects.
        retention_s: How long its rows are kept, as set by ``DatabaseRetention.inbox_s``.
        table: The inbox table.
    """
    from sqlalchemy import inspect

    if not inspect(engine).has_table(require_table("table", table)):
        return []
    return run_checks(CHECKS, RetentionFacts(retention_s, _oldest_row_s(engine, table), comebacks))


def check_purge(facts: RetentionFacts) -> Iterator[Finding]:
    """Inbox rows that are much older than they should become."""
    if facts.oldest_row_s is not None and facts.oldest_row_s > facts.retention_s + max(_DAY_S, facts.retention_s / 10):
        yield Finding(
            "inbox.purge",
            Severity.WARNING,
            f"the oldest inbox row is {facts.oldest_row_s / _DAY_S:,.0f} days old; rows should go after "
            f"{facts.retention_s / _DAY_S:,.0f} days",
            "no worker purges the inbox, and its table grows without end",
            "run a conquiet.transactional.Purger beside a worker, or conquiet db purge from cron",
        )


def check_comebacks(facts: RetentionFacts) -> Iterator[Finding]:
    """Messages that can come back after their inbox row was purged."""
    for one in facts.comebacks:
        if one.after_s >= facts.retention_s:
            yield Finding(
                "inbox.retention",
                Severity.ERROR,
                f"{one.what} of {printable(one.stream)!r} can come back {one.after_s / _DAY_S:,.1f} days after it was "
                f"handled, and inbox rows are kept for {facts.retention_s / _DAY_S:,.1f} days",
                "its effect would happen a second time",
                "keep inbox rows longer (DatabaseRetention.inbox_s), or settle or discard it first",
            )


CHECKS = (check_purge, check_comebacks)


def _oldest_row_s(engine: "Engine", table: str) -> float | None:
    from sqlalchemy import text

    from conquiet.db import sql
    from conquiet.db.dialects import is_postgres

    name = sql.quoted(table, sql.DOUBLE_QUOTE if is_postgres(engine) else sql.BACKTICK)
    with engine.connect() as connection:
        oldest = connection.scalar(text(f"SELECT MIN(handled_at) FROM {name}"))  # noqa: S608 - a checked identifier
    if oldest is None:
        return None
    if not isinstance(oldest, datetime):  # SQLite has text
        oldest = datetime.fromisoformat(str(oldest))
    if oldest.tzinfo is None:
        oldest = oldest.replace(tzinfo=UTC)
    # By the clock of this host: minutes do not matter against days.
    return (datetime.now(UTC) - oldest).total_seconds()


def find_comebacks(server: "RedisAdmin") -> tuple[Comeback, ...]:
    """Ask for the oldest copy of each kind, of at most 100 streams."""
    return tuple(_comebacks(server))


def _comebacks(server: "RedisAdmin") -> Iterator[Comeback]:
    from conquiet.management.overview import list_streams
    from conquiet.management.partitions import names_of

    now_ms = server.now_ms()
    for stream in list_streams(server).streams:
        pending = [group.oldest_age_s for group in stream.groups if group.pending and group.oldest_age_s is not None]
        if pending:
            yield Comeback(stream.key, "a pending entry", max(pending))
        for key in names_of(stream.raw_key, stream.partitions):
            yield from _comebacks_beside(server, stream, key, now_ms)


def _comebacks_beside(server: "RedisAdmin", stream: "StreamReport", key: bytes, now_ms: int) -> Iterator[Comeback]:
    """Look at what the processor keeps beside one partition."""
    base = slot_prefix(key.decode("latin-1")).encode("latin-1")
    if stream.dead_letters:
        first = server.call("XRANGE", base + b":dead", "-", "+", "COUNT", 1, stream=stream.key)
        if first:
            age_s = (now_ms - milliseconds_of(text(first[0][0]))) / 1000
            yield Comeback(stream.key, "a dead letter", max(0.0, age_s))
    if stream.delayed:
        last = server.call("ZRANGE", base + b":delayed", -1, -1, "WITHSCORES", stream=stream.key)
        if last:
            yield Comeback(stream.key, "a delayed message", max(0.0, (float(last[1]) - now_ms) / 1000))
