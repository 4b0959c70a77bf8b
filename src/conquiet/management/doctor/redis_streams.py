"""Checks of streams and consumer groups."""

from collections.abc import Iterator

from conquiet.core.redaction import printable
from conquiet.management.doctor.findings import Finding, Severity
from conquiet.management.doctor.redis_facts import RedisFacts
from conquiet.management.models import ConsumerState, GroupReport


def check_growth(facts: RedisFacts) -> Iterator[Finding]:
    """Report a stream that is never trimmed."""
    for stream in facts.streams:
        if not stream.groups or any(group.lag is None for group in stream.groups):
            continue
        needed = max((group.lag or 0) + group.pending for group in stream.groups)
        done = stream.length - needed
        if done > facts.limits.max_done:
            yield Finding.warning(
                "redis.growth",
                f"stream {printable(stream.key)!r} keeps {done:,} entries that every group is done with",
                "acknowledging removes nothing; the stream grows until the memory is full",
                "give its consumers a retention (docs/housekeeping.md; a Processor has one by default), or run "
                f"conquiet trim {printable(stream.key)} from cron",
            )


def check_dead_consumers(facts: RedisFacts) -> Iterator[Finding]:
    """Report pending entries of consumers that are dead, or may be dead without proof by this server."""
    for stream, group, _ in facts.groups():
        key, name = printable(stream.key), printable(group.name)
        place = f"of {key!r}, group {name!r}"
        dead, unknown = group.with_pending(ConsumerState.DEAD), group.with_pending(ConsumerState.UNKNOWN)
        if dead:
            entries = sum(consumer.pending for consumer in dead)
            yield Finding.warning(
                "redis.dead_consumers",
                f"{len(dead)} dead consumers {place}, hold {entries:,} entries",
                "they are not handled until a worker claims stale entries",
                f"start a worker that claims, or: conquiet reclaim {key} {name} --dead-owners",
            )
        if unknown:
            entries = sum(consumer.pending for consumer in unknown)
            yield Finding.warning(
                "redis.dead_consumers",
                f"{len(unknown)} consumers {place}, hold {entries:,} entries and may be dead",
                "before Redis 7.2 the server cannot distinguish a dead consumer from a live one that gets nothing",
                "if they are stopped, start a worker that claims, or: conquiet reclaim "
                f"{key} {name} --min-idle-s {max(1, int(facts.limits.alive_s))}",
            )


def check_deliveries(facts: RedisFacts) -> Iterator[Finding]:
    """Report entries that were delivered too often."""
    for stream, group, count in facts.exhausted:
        yield Finding.error(
            "redis.deliveries",
            f"{count:,} entries of {printable(stream)!r}, group {printable(group)!r}, were delivered "
            f"{facts.limits.max_deliveries} times or more",
            "they fail each time, or kill their worker, and take the place of others",
            f"see them with: conquiet pending {printable(stream)} {printable(group)} "
            f"--min-deliveries {facts.limits.max_deliveries}; then fix the handler, and "
            "run them again with conquiet reclaim --reset-deliveries, or let max_deliveries dead-letter them",
        )


def check_lag(facts: RedisFacts) -> Iterator[Finding]:
    """Report a group that falls behind or has no consumer."""
    for stream, group, waiting in facts.groups():
        to_do = _to_do(group, waiting, facts.limits.max_lag)
        place = f"group {printable(group.name)!r} of {printable(stream.key)!r}"
        age_s = group.oldest_age_s or 0
        if to_do and not any(consumer.alive for consumer in group.consumers):
            proved = all(consumer.state is ConsumerState.DEAD for consumer in group.consumers)
            missing = "no live consumer" if proved else "no consumer that is known to be alive"
            yield Finding(
                "redis.lag",
                Severity.ERROR if age_s > facts.limits.max_age_s else Severity.WARNING,
                f"{place} has {to_do} entries to do and {missing}",
                "they are not handled",
                "start workers, or destroy the group if it is not used any more",
            )
        elif (waiting or 0) > facts.limits.max_lag or age_s > facts.limits.max_age_s:
            yield Finding.warning(
                "redis.lag",
                f"{place} is behind: {to_do} entries, the oldest {age_s:,.0f} s old",
                "messages wait longer than they should",
                "start more workers, or find the slow handler",
            )


def _to_do(group: GroupReport, waiting: int | None, max_lag: int) -> str:
    """Return the number of unacknowledged entries as text; empty if there are none."""
    if waiting is None:
        return "an unknown number of"
    behind = waiting + group.pending
    if not behind:
        return ""
    cut_short = group.lag is None and waiting > max_lag
    return f"at least {behind:,}" if cut_short else f"{behind:,}"
