"""Read all streams once for all viewers, at intervals that bound the cost.

Without viewers nothing is read. An expensive reading is repeated less often: streams, workers and the rendering of a
page (``live``) use at most 0.6 percent of a core each, independent of the number of streams.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from conquiet.dashboard.connections import ConnectionWatch
from conquiet.dashboard.servers import Servers
from conquiet.management.fleet import (
    DelayedCounts,
    Flow,
    StreamDirectory,
    StreamSnapshot,
    count_retrying,
    flow,
    read_fleet,
)
from conquiet.management.history import read_sparklines
from conquiet.management.workers import StreamWorker, read_workers

if TYPE_CHECKING:
    from conquiet.management.redis_admin import RedisAdmin

T = TypeVar("T")

_SHORTEST_S: Final = 0.9
_LONGEST_S: Final = 10.0
_SHARE: Final = 0.006
_OLDEST_RATE_S: Final = 30.0
_SMOOTH: Final = 0.5
_SCAN_EVERY_S: Final = 5.0
_FEW_STEPS: Final = 2
_SPARK_S: Final = 20.0
_RETRYING_S: Final = 5.0
_MOST_PER_S: Final = 12.0
"""Most commands per second of each reading in a Redis Cluster, where each stream is queried separately."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """All streams at one moment.

    Attributes:
        streams: Snapshots in order of their names.
        flows: Rates by key of a stream; missing before its second reading.
        complete: True if all streams of the server are known.
    """

    streams: tuple[StreamSnapshot, ...] = ()
    flows: dict[bytes, Flow] = field(default_factory=dict)
    complete: bool = True

    def get(self, key: bytes) -> StreamSnapshot | None:
        """Return one stream."""
        return next((one for one in self.streams if one.raw_key == key), None)

    def flow_of(self, key: bytes) -> Flow:
        """Return the rates of one stream."""
        return self.flows.get(key, Flow(None, None))


class _Reading(Generic[T]):
    """A value that is read again when it is too old, by one caller at a time."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.lock = asyncio.Lock()
        self._read_at = float("-inf")
        self._wait_s = _SHORTEST_S

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self._read_at < self._wait_s

    def finished(self, value: T, cpu_s: float, *, commands: int = 0) -> None:
        self.value = value
        self._read_at = time.monotonic()
        self._wait_s = max(min(_LONGEST_S, max(_SHORTEST_S, cpu_s / _SHARE)), commands / _MOST_PER_S)


class Fleet:
    """The streams and workers of one Redis.

    Args:
        servers: Queries Redis.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._directory = StreamDirectory()
        self._streams = _Reading(FleetView())
        self._workers: _Reading[tuple[StreamWorker, ...]] = _Reading(())
        self._marked_at = float("-inf")
        self.connections = ConnectionWatch(servers)
        self._scanned_at = float("-inf")
        self._sparks: dict[bytes, tuple[float, list[int]]] = {}
        self._retrying: dict[bytes, tuple[float, DelayedCounts]] = {}

    async def streams(self) -> FleetView:
        """Return all streams, at most about a second old."""
        async with self._streams.lock:
            if not self._streams.is_fresh:
                before = self._streams.value
                (found, complete), cpu_s = await self._servers.redis(lambda admin: _timed(lambda: self._read(admin)))
                flows = _flows(before, found)
                commands = len(found) if self._servers.is_cluster else 0
                self._streams.finished(FleetView(tuple(found), flows, complete), cpu_s, commands=commands)
            return self._streams.value

    async def workers(self) -> tuple[StreamWorker, ...]:
        """Return all consumers of all groups, at most about a second old."""
        async with self._workers.lock:
            if not self._workers.is_fresh:
                fleet = await self.streams()
                groups = [(stream.raw_key, group.raw_name) for stream in fleet.streams for group in stream.groups]
                found, cpu_s = await self._servers.redis(lambda admin: _timed(lambda: read_workers(admin, groups)))
                self._workers.finished(tuple(found), cpu_s, commands=len(groups) if self._servers.is_cluster else 0)
                self._marked_at = float("-inf")
            # Cheaper than a reading, so it runs more often: a killed worker must be shown within two seconds.
            if time.monotonic() - self._marked_at > _SHORTEST_S:
                self._workers.value = await self.connections.mark_disconnected(self._workers.value)
                self._marked_at = time.monotonic()
            return self._workers.value

    async def disconnected(self) -> frozenset[tuple[str, str]]:
        """Return group and name of the workers that have lost their connections."""
        return frozenset((one.group, one.name) for one in await self.workers() if one.disconnected)

    async def sparklines(self, streams: list[StreamSnapshot]) -> dict[bytes, list[int]]:
        """Return attempts per minute of the last hour; read again every 20 seconds."""

        def read(admin: "RedisAdmin", due: list[StreamSnapshot]) -> dict[bytes, list[int]]:
            return read_sparklines(admin, [(one.raw_key, [group.raw_name for group in one.groups]) for one in due])

        return await self._read_old(self._sparks, streams, _SPARK_S, read)

    async def retrying(self, streams: list[StreamSnapshot]) -> dict[bytes, DelayedCounts]:
        """Return how many of the delayed messages are retries; read again every five seconds."""
        oldest_s = _SPARK_S if self._servers.is_cluster else _RETRYING_S
        return await self._read_old(self._retrying, [one for one in streams if one.delayed], oldest_s, count_retrying)

    async def _read_old(
        self,
        known: dict[bytes, tuple[float, T]],
        streams: list[StreamSnapshot],
        oldest_s: float,
        read: "Callable[[RedisAdmin, list[StreamSnapshot]], dict[bytes, T]]",
    ) -> dict[bytes, T]:
        """Return a value of each stream, read again if it is older than ``oldest_s``."""
        now = time.monotonic()
        due = [one for one in streams if one.raw_key not in known or now - known[one.raw_key][0] > oldest_s]
        if due:
            found = await self._servers.redis(lambda admin: read(admin, due))
            if len(known) > 10 * len(streams) + 1_000:
                known.clear()
            known |= {key: (now, value) for key, value in found.items()}
        return {one.raw_key: known[one.raw_key][1] for one in streams if one.raw_key in known}

    def _read(self, admin: "RedisAdmin") -> tuple[list[StreamSnapshot], bool]:
        # A small keyspace is scanned with each reading, so that a new stream is shown immediately.
        every_s = 0.0 if self._directory.last_steps <= _FEW_STEPS else _SCAN_EVERY_S
        if time.monotonic() - self._scanned_at > every_s or not self._directory.complete:
            self._directory.advance(admin)
            self._scanned_at = time.monotonic()
        return read_fleet(admin, self._directory.keys()), self._directory.complete


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.thread_time()
    return work(), time.thread_time() - began


def _flows(before: FleetView, found: list[StreamSnapshot]) -> dict[bytes, Flow]:
    earlier = {one.raw_key: one for one in before.streams}
    flows: dict[bytes, Flow] = {}
    for one in found:
        last = earlier.get(one.raw_key)
        if last is None or one.at_ms - last.at_ms > _OLDEST_RATE_S * 1000:
            continue
        now, then = flow(last, one), before.flow_of(one.raw_key)
        flows[one.raw_key] = Flow(_smooth(then.per_s_in, now.per_s_in), _smooth(then.per_s_out, now.per_s_out))
    return flows


def _smooth(before: float | None, now: float | None) -> float | None:
    """Return a rate that does not jump with every batch of acknowledgements."""
    if before is None or now is None:
        return now
    mixed = before * (1 - _SMOOTH) + now * _SMOOTH
    return 0.0 if mixed < 0.05 else mixed  # noqa: PLR2004 - less than one in twenty seconds is shown as 0
