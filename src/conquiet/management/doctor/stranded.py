"""Find stranded entries: a live consumer holds them after a failure, and nothing reads them again.

After an exception of its handler a ``QueueConsumer`` leaves the message pending under its name. It continues with new
messages under the same name, so it is alive, and the entry waits until a worker recovers or claims it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from conquiet.core.redaction import printable
from conquiet.errors import GroupMissingError
from conquiet.management.doctor.findings import Finding
from conquiet.management.models import StreamReport
from conquiet.management.redis_admin import RedisAdmin
from conquiet.redis_transport.replies import pending_rows

if TYPE_CHECKING:
    from conquiet.management.doctor.redis_facts import RedisFacts

_ROWS = 1_000


class Stranded(NamedTuple):
    """Entries of one live consumer that are idle for too long."""

    stream: str
    group: str
    consumer: str
    entries: int
    idle_s: float


def find_stranded(server: RedisAdmin, streams: tuple[StreamReport, ...], max_idle_s: float) -> Iterator[Stranded]:
    """Yield the entries of live consumers that are idle for ``max_idle_s``. Reads at most 1,000 rows per consumer."""
    max_idle_ms = round(max_idle_s * 1000)
    for stream in streams:
        for group in stream.groups:
            for consumer in group.consumers:
                if not (consumer.alive and consumer.pending):
                    continue
                command = ("XPENDING", stream.raw_key, group.raw_name, "IDLE", max_idle_ms, "-", "+", _ROWS)
                try:
                    rows = pending_rows(server.call(*command, consumer.name, stream=stream.key, group=group.name))
                except GroupMissingError:  # destroyed since it was listed
                    continue
                if rows:
                    idle_s = max(row.idle_ms for row in rows) / 1000
                    yield Stranded(stream.key, group.name, consumer.name, len(rows), idle_s)


def check_stranded(facts: "RedisFacts") -> Iterator[Finding]:
    """Report entries that a live consumer has left pending, one finding for each consumer."""
    for one in facts.stranded:
        stream, group = printable(one.stream), printable(one.group)
        yield Finding.warning(
            "redis.stranded",
            f"consumer {printable(one.consumer)!r} of {stream!r}, group {group!r}, is alive and holds "
            f"{one.entries:,} entries that it has not touched for up to {one.idle_s:,.0f} s",
            "their handler most likely failed; the consumer reads only new entries, and these wait until recovered",
            f"run(recover=True) in that consumer, a process with run_claim_stale(), or: conquiet reclaim {stream} "
            f"{group} --min-idle-s {facts.limits.max_idle_s:.0f}",
        )
