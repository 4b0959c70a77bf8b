"""Checks of retention: groups that prevent trimming, and the age of inbox rows against possible redeliveries.

An inbox row prevents a second effect while it exists. It must therefore be kept longer than any copy of its message: a
pending or undelivered entry, a delayed retry, or a dead letter that an operator may replay.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conquiet.core.redaction import printable
from conquiet.management.doctor.findings import Finding, run_checks
from conquiet.redis_transport.hash_tags import slot_prefix_bytes
from conquiet.redis_transport.ids import milliseconds_of
from conquiet.redis_transport.replies import text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.management.doctor.redis_facts import RedisFacts
    from conquiet.management.models import GroupReport, StreamReport
    from conquiet.management.redis_admin import RedisAdmin

_DAY_S = 86_400.0


def check_unread_groups(facts: "RedisFacts") -> Iterator[Finding]:
    """Report a group without consumers: trimming stops at the first entry that it needs."""
    for stream, group, waiting in facts.groups():
        old = (group.oldest_age_s or 0) > facts.limits.max_age_s
        if not group.consumers and not group.pending and waiting and old and _is_left_behind(stream, group):
            names = f"{printable(stream.key)} {printable(group.name)}"
            yield Finding.warning(
                "redis.unread_group",
                f"no consumer reads group {printable(group.name)!r} of {printable(stream.key)!r}, which has "
                f"{waiting:,} entries to do",
                "none of them can be removed from the stream, and every new one is added to them",
                f"start its consumers; if it was only created to produce, destroy it: redis-cli XGROUP DESTROY {names}",
            )


def _is_left_behind(stream: "StreamReport", group: "GroupReport") -> bool:
    """Return whether the group has never read, or another group of the stream is ahead of it."""
    others = [other.last_delivered_id for other in stream.groups if other is not group]
    return group.last_delivered_id == "0-0" or any(
        milliseconds_of(other) > milliseconds_of(group.last_delivered_id) for other in others
    )


@dataclass(frozen=True, slots=True)
class RedeliverySource:
    """A place that messages of a stream can be delivered from again.

    Attributes:
        stream: The stream.
        what: Kind of the place.
        after_s: Longest time between the first handling of a message and its redelivery from there.
    """

    stream: str
    what: str
    after_s: float


@dataclass(frozen=True, slots=True)
class RetentionFacts:
    """Retention of an inbox, and possible redeliveries.

    Attributes:
        retention_s: Age at which inbox rows are purged.
        oldest_row_s: Age of the oldest inbox row; None if there is none.
        sources: Possible redeliveries, by stream.
    """

    retention_s: float
    oldest_row_s: float | None
    sources: tuple[RedeliverySource, ...]


def examine_inbox(
    engine: "Engine", sources: tuple[RedeliverySource, ...] = (), *, retention_s: float = 30 * _DAY_S
) -> list[Finding]:
    """Return the findings about the retention of an inbox; nothing if there is no inbox table.

    Args:
        engine: The database.
        sources: Result of ``find_redelivery_sources`` for the Redis of the protected messages.
        retention_s: Age at which its rows are purged: ``DatabaseRetention.inbox_s``.
    """
    from sqlalchemy import inspect

    from conquiet.management.database_view import DatabaseView

    if not inspect(engine).has_table("conquiet_inbox"):
        return []
    return run_checks(
        CHECKS, RetentionFacts(retention_s, DatabaseView(engine).inbox(most_rows=1).oldest_age_s, sources)
    )


def check_purge(facts: RetentionFacts) -> Iterator[Finding]:
    """Report inbox rows that are much older than the retention."""
    if facts.oldest_row_s is not None and facts.oldest_row_s > facts.retention_s + max(_DAY_S, facts.retention_s / 10):
        yield Finding.warning(
            "inbox.purge",
            f"the oldest inbox row is {facts.oldest_row_s / _DAY_S:,.0f} days old; rows should go after "
            f"{facts.retention_s / _DAY_S:,.0f} days",
            "no worker purges the inbox, and its table grows without end",
            "run a conquiet.transactional.Purger with a worker, or conquiet db purge from cron",
        )


def check_redelivery(facts: RetentionFacts) -> Iterator[Finding]:
    """Report messages that can be delivered again after the purge of their inbox row."""
    for one in facts.sources:
        if one.after_s >= facts.retention_s:
            yield Finding.error(
                "inbox.retention",
                f"{one.what} of {printable(one.stream)!r} can be delivered again {one.after_s / _DAY_S:,.1f} days "
                f"after it was handled, and inbox rows are kept for {facts.retention_s / _DAY_S:,.1f} days",
                "its effect would happen a second time",
                "keep inbox rows longer (DatabaseRetention.inbox_s), or settle or discard it first",
            )


CHECKS = (check_purge, check_redelivery)


def find_redelivery_sources(server: "RedisAdmin") -> tuple[RedeliverySource, ...]:
    """Return the oldest copy of each kind, of at most 100 streams."""
    return tuple(_redelivery_sources(server))


def _redelivery_sources(server: "RedisAdmin") -> Iterator[RedeliverySource]:
    from conquiet.management.overview import list_streams
    from conquiet.management.partitions import names_of

    now_ms = server.now_ms()
    for stream in list_streams(server).streams:
        pending = [group.oldest_age_s for group in stream.groups if group.pending and group.oldest_age_s is not None]
        if pending:
            yield RedeliverySource(stream.key, "a pending entry", max(pending))
        for key in names_of(stream.raw_key, stream.partitions):
            yield from _stored_sources(server, stream, key, now_ms)


def _stored_sources(
    server: "RedisAdmin", stream: "StreamReport", key: bytes, now_ms: int
) -> Iterator[RedeliverySource]:
    """Yield the delayed messages and dead letters of one partition."""
    base = slot_prefix_bytes(key)
    if stream.dead_letters:
        first = server.call("XRANGE", base + b":dead", "-", "+", "COUNT", 1, stream=stream.key)
        if first:
            age_s = (now_ms - milliseconds_of(text(first[0][0]))) / 1000
            yield RedeliverySource(stream.key, "a dead letter", max(0.0, age_s))
    if stream.delayed:
        last = server.call("ZRANGE", base + b":delayed", -1, -1, "WITHSCORES", stream=stream.key)
        if last:
            yield RedeliverySource(stream.key, "a delayed message", max(0.0, (float(last[1]) - now_ms) / 1000))
