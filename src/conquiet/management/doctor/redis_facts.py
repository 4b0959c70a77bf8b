"""Gather facts about a Redis with bounded commands. The checks are pure functions of these facts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from conquiet.errors import GroupMissingError, QueueError
from conquiet.management.doctor.clocks import ClockReading, read_clocks
from conquiet.management.doctor.replication import ClusterFacts, gather_cluster, read_config
from conquiet.management.doctor.stranded import Stranded, find_stranded
from conquiet.management.liveness import ALIVE_S
from conquiet.management.models import GroupReport, StreamReport
from conquiet.management.overview import list_streams
from conquiet.management.redis_admin import RedisAdmin
from conquiet.redis_transport.replies import Pending, pending_rows, text

_NEEDED = (
    "XADD", "XREADGROUP", "XACK", "XPENDING", "XCLAIM", "XAUTOCLAIM", "XINFO", "XGROUP", "XRANGE", "EVAL", "EVALSHA",
)  # fmt: skip
_HIGH_ROWS = 1_000
_COUNT_STEP = 250

_PendingRows = dict[tuple[str, str], list[Pending]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisLimits:
    """Thresholds of the checks.

    Attributes:
        max_lag: Undelivered entries of one group.
        max_age_s: Age of the oldest entry that a group has not acknowledged.
        max_done: Entries that every group has acknowledged and that were not trimmed.
        max_deliveries: Deliveries after which an entry should have been dead-lettered: the default of
            ``RuntimeSettings``.
        alive_s: A consumer is live if its idle time is shorter than this.
        max_clock_offset_s: Largest difference of two clocks.
        max_idle_s: An entry that a live consumer holds idle for longer is stranded. Ten times ``claim_idle_ms``.
    """

    max_lag: int = 10_000
    max_age_s: float = 600.0
    max_done: int = 100_000
    max_deliveries: int = 20
    alive_s: float = ALIVE_S
    max_clock_offset_s: float = 1.0
    max_idle_s: float = 600.0


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Facts about the server.

    Attributes:
        counted: Undelivered entries, by stream and group, if the server does not know the lag; at most one more than
            ``max_lag``.
        complete: False if there are more streams than were checked.
        stranded: Entries that a live consumer holds idle for longer than ``max_idle_s``.
        clocks: Clocks of the server and of its replicas, against the clock of this host.
        cluster: Facts about each master of a Redis Cluster; None for a single server. With a cluster, ``info``
            and ``config`` come from one master.
    """

    info: dict[str, str]
    config: dict[str, str]
    missing_commands: tuple[str, ...]
    streams: tuple[StreamReport, ...]
    exhausted: tuple[tuple[str, str, int], ...]
    client_version: str
    limits: RedisLimits = field(default_factory=RedisLimits)
    counted: dict[tuple[str, str], int] = field(default_factory=dict)
    complete: bool = True
    stranded: tuple[Stranded, ...] = ()
    clocks: tuple[ClockReading, ...] = ()
    cluster: ClusterFacts | None = None

    def groups(self) -> Iterator[tuple[StreamReport, GroupReport, int | None]]:
        """Yield each group with its stream and the number of its undelivered entries; None if that is unknown."""
        for stream in self.streams:
            for group in stream.groups:
                # The server does not know the lag after an XDEL, and never before 7.0.
                counted = self.counted.get((stream.key, group.name))
                yield stream, group, counted if group.lag is None else group.lag


def gather(server: RedisAdmin, limits: RedisLimits) -> RedisFacts:
    """Gather the facts. Bounded: at most 100 streams, 1,000 pending rows per group, ``max_lag`` entries counted."""
    found = list_streams(server, alive_s=limits.alive_s)
    streams = found.streams
    info = server.info()
    pending = {
        (stream.key, group.name): _pending(server, stream, group) for stream in streams for group in stream.groups
    }
    return RedisFacts(
        info=info,
        config=read_config(server),
        missing_commands=_missing(server),
        streams=streams,
        exhausted=tuple(_exhausted(pending, limits.max_deliveries)),
        client_version=_client_version(),
        limits=limits,
        counted=dict(_counted(server, streams, limits.max_lag)),
        complete=found.complete,
        stranded=tuple(find_stranded(server, streams, limits.max_idle_s)),
        clocks=read_clocks(server, info),
        cluster=gather_cluster(server),
    )


def _missing(server: RedisAdmin) -> tuple[str, ...]:
    try:
        replies = server.call("COMMAND", "INFO", *_NEEDED)
    except QueueError:
        return ()
    return tuple(name for name, reply in zip(_NEEDED, replies, strict=True) if not reply)


def _exhausted(pending: _PendingRows, cap: int) -> Iterator[tuple[str, str, int]]:
    for (stream, group), rows in pending.items():
        count = sum(row.deliveries >= cap for row in rows)
        if count:
            yield stream, group, count


def _pending(server: RedisAdmin, stream: StreamReport, group: GroupReport) -> list[Pending]:
    if not group.pending:
        return []
    command = ("XPENDING", stream.raw_key, group.raw_name, "-", "+", _HIGH_ROWS)
    try:
        return pending_rows(server.call(*command, stream=stream.key, group=group.name))
    except GroupMissingError:  # destroyed since it was listed
        return []


def _counted(
    server: RedisAdmin, streams: tuple[StreamReport, ...], max_lag: int
) -> Iterator[tuple[tuple[str, str], int]]:
    for stream in streams:
        for group in stream.groups:
            if group.lag is None:
                yield (stream.key, group.name), _count(server, stream, group.last_delivered_id, max_lag + 1)


def _count(server: RedisAdmin, stream: StreamReport, after: str, enough: int) -> int:
    """Count the entries after the id ``after``, at most ``enough``."""
    count = 0
    while count < enough:
        wanted = min(_COUNT_STEP, enough - count)
        page = server.call("XRANGE", stream.raw_key, f"({after}", "+", "COUNT", wanted, stream=stream.key)
        count += len(page)
        if len(page) < wanted:
            break
        after = text(page[-1][0])
    return count


def _client_version() -> str:
    try:
        return version("redis")
    except PackageNotFoundError:
        return ""
