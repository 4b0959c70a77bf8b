"""Detect workers that have lost their connections to Redis, once per second while a page shows workers.

See docs/decisions/0052.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from conquiet.dashboard.servers import Servers
from conquiet.management.workers import (
    StreamWorker,
    WorkerConnections,
    connections_of,
    find_closed,
    mark_closed,
    read_workers,
)

_AGAIN_S: Final = 0.4
"""Time for a worker to reconnect after the loss of a connection. Its first attempt follows within 50 ms."""

_REFUSED_S: Final = 60.0
_MOST_KNOWN: Final = 10_000


class ConnectionWatch:
    """Determines from their connections which workers are dead.

    Args:
        servers: Queries Redis.
        pause: Waits before the second query.
    """

    def __init__(self, servers: Servers, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._pause = pause
        self._servers = servers
        self._closed: set[WorkerConnections] = set()
        self._refused_at = float("-inf")

    async def mark_disconnected(self, workers: Iterable[StreamWorker]) -> tuple[StreamWorker, ...]:
        """Return the workers, marked as dead if their connections were missing twice.

        Their reports are read again in between: a worker that has reconnected reports other connections.
        """
        found = tuple(workers)
        closed = await self._find_closed(found)
        if not closed <= self._closed:
            await self._pause(_AGAIN_S)
            suspects = [one for one in found if connections_of(one) in closed]
            found = _updated(found, await self._read_again(suspects))
            closed = await self._find_closed(found)
            if len(self._closed) > _MOST_KNOWN:
                self._closed.clear()
            self._closed |= closed
        return mark_closed(found, closed)

    async def _find_closed(self, workers: tuple[StreamWorker, ...]) -> set[WorkerConnections]:
        if time.monotonic() - self._refused_at < _REFUSED_S:
            return set()
        closed = await self._servers.redis(lambda admin: find_closed(admin, workers))
        if closed is None:  # no right to CLIENT LIST or INFO: the liveness key decides
            self._refused_at = time.monotonic()
            return set()
        return closed

    async def _read_again(self, workers: list[StreamWorker]) -> list[StreamWorker]:
        groups = {(one.stream.encode(), one.group.encode()) for one in workers}
        return await self._servers.redis(lambda admin: read_workers(admin, groups))


def _updated(workers: tuple[StreamWorker, ...], newer: list[StreamWorker]) -> tuple[StreamWorker, ...]:
    """Return the workers, replaced by their newer readings where they exist."""
    known = {(one.stream, one.group, one.name): one for one in newer}
    return tuple(known.get((one.stream, one.group, one.name), one) for one in workers)
