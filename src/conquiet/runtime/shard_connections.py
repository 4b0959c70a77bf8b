"""The two connections of a shard. The reader's may be blocked while acknowledgements are sent."""

import threading
from dataclasses import dataclass
from typing import Self

from conquiet.redis_transport.async_connection import AsyncRedisConnection
from conquiet.redis_transport.topology import Topology
from conquiet.redis_transport.worker_reports import ConnectionId
from conquiet.runtime.settings import RuntimeSettings


@dataclass(frozen=True, slots=True)
class ShardConnections:
    """Connections to the server of streams that one command can read together.

    Attributes:
        streams: The streams.
        read: For reads, which may block.
        ack: For acknowledgements and all other commands.
    """

    streams: tuple[str, ...]
    read: AsyncRedisConnection
    ack: AsyncRedisConnection

    @classmethod
    def create(
        cls, topology: Topology, streams: tuple[str, ...], settings: RuntimeSettings, report_due: threading.Event
    ) -> Self:
        """Return unopened connections. The loss of one sets ``report_due``, if activity is reported."""
        read, ack = (
            AsyncRedisConnection(
                topology,
                streams[0],
                name,
                identify=settings.report_activity,
                on_lost=report_due.set if settings.report_activity else None,
            )
            for name in ("read", "ack")
        )
        return cls(streams, read, ack)

    def identities(self) -> tuple[ConnectionId | None, ConnectionId | None]:
        """Return the identities of both connections, None for a closed one. Safe from any thread."""
        return self.read.identity, self.ack.identity
