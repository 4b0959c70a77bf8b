"""The report of an engine in Redis: its process, its health, and its counts since the last report.

The heartbeat thread writes it when it renews the liveness key (``name_reservation``), in the same script call.
Counts are read without a lock: the event loop only adds to them.

See docs/decisions/0052.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from conquiet._version import __version__
from conquiet.core.identity import hostname
from conquiet.redis_transport.worker_reports import ConnectionId
from conquiet.runtime.metrics import StreamStats

if TYPE_CHECKING:
    from conquiet.runtime.health import EngineHealth

VERSION: Final = "CONQUIET_APP_VERSION"
"""Environment variable with your program's version. The dashboard marks the first start of a version as a deploy."""

_MOST_TEXT = 100

Totals = dict[str, int]


class WorkerReporter:
    """Describes one engine.

    Args:
        stats: Its counters, by stream.
        concurrency: Maximum number of concurrent handlers.
        health: Returns its health.
    """

    def __init__(
        self, stats: Mapping[str, StreamStats], *, concurrency: int, health: "Callable[[], EngineHealth]"
    ) -> None:
        self._stats = stats
        self._concurrency = concurrency
        self._started_ms = int(time.time() * 1000)
        self._reported: dict[str, Totals] = {}
        self._marked: set[str] = set()
        self.version = os.environ.get(VERSION, "")[:_MOST_TEXT] or f"conquiet {__version__}"
        self._health = health

    def facts(self, connections: Sequence[ConnectionId] = ()) -> bytes:
        """Return the facts for the workers page as JSON.

        Args:
            connections: The reading and acknowledging connections. Only connections to the server of the first one
                are reported.
        """
        facts: dict[str, str | int | bool | list[int]] = {
            "host": hostname(),
            "pid": os.getpid(),
            "version": self.version,
            "conquiet": __version__,
            "started_ms": self._started_ms,
            "at_ms": int(time.time() * 1000),
            "concurrency": self._concurrency,
        }
        with contextlib.suppress(RuntimeError):  # the event loop changed a dict while this thread read it
            health = self._health()
            facts |= {"active": health.active, "in_flight": health.in_flight}
            facts |= {"ready": health.ready, "reason": health.reason[:_MOST_TEXT]}
        if connections:
            server = connections[0].server
            facts |= {"server": server, "clients": [one.client for one in connections if one.server == server]}
        return msgspec.json.encode(facts)

    def unmarked_version(self, stream: str) -> str:
        """Return the version if its start was not recorded for this stream yet, else an empty string."""
        return "" if stream in self._marked else self.version

    def new_counts(self, stream: str) -> tuple[list[str | int], Totals]:
        """Return pairs of counter and increase since the last confirmed report, and the totals to confirm."""
        totals = self._stats[stream].totals()
        before = self._reported.get(stream, {})
        pairs: list[str | int] = []
        for name, total in totals.items():
            if grown := total - before.get(name, 0):
                pairs += (name, grown)
        return pairs, totals

    def confirm(self, stream: str, totals: Totals) -> None:
        """Record that the server has stored these totals."""
        self._reported[stream] = totals
        self._marked.add(stream)
