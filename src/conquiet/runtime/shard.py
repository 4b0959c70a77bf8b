"""Streams that one command can read together, with the connections to fetch and acknowledge them.

One server has one shard. A Redis Cluster has one shard for each slot that holds a stream.

See docs/decisions/0015.
"""

import asyncio
import contextlib
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from conquiet.errors import QueueError
from conquiet.metrics.outages import OutageWatch
from conquiet.redis_transport.async_connection import AsyncRedisConnection, ConnectionLostError
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError, translate
from conquiet.redis_transport.worker_reports import ConnectionId
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.batch import MessagePool
from conquiet.runtime.fetcher import Fetcher
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.name_reservation import NameReservation
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.stream_reader import StreamReader

MAY_WORK = """
redis.call('XPENDING', KEYS[1], ARGV[1], '0-1', '0-1', 1, ARGV[2])
for _, command in ipairs(redis.acl_check_cmd and {
  {'XACK', KEYS[1], ARGV[1], '0-1'},
  {'XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, '0-0'},
  {'XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, '0-1', 'JUSTID'},
  {'XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'STREAMS', KEYS[1], '>'},
} or {}) do
  local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
  if known and not allowed then
    return redis.error_reply('NOPERM ' .. command[1])
  end
end
return 1
"""
"""Change nothing, and fail if the user lacks a needed right. Before Redis 7 only EVAL and XPENDING are checked."""


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
    def create(cls, streams: tuple[str, ...], parts: EngineParts, report_due: threading.Event) -> Self:
        """Return unopened connections. The loss of one sets ``report_due``, if activity is reported."""
        is_reported = parts.settings.report_activity
        on_lost = report_due.set if is_reported else None
        read, ack = (
            AsyncRedisConnection(parts.topology, streams[0], name, identify=is_reported, on_lost=on_lost)
            for name in ("read", "ack")
        )
        return cls(streams, read, ack)

    def identities(self) -> tuple[ConnectionId | None, ConnectionId | None]:
        """Return the identities of both connections, None for a closed one. Safe from any thread."""
        return self.read.identity, self.ack.identity


class Shard:
    """A reader and an acknowledger with separate connections: the reader's may be blocked.

    Args:
        connections: The streams to fetch, and the connections to their server.
        acknowledger: Acknowledges their messages.
        pool: Runs their messages.
        name: Reserves the consumer name.
        parts: The parts that all parts of the engine share.
    """

    def __init__(
        self,
        connections: ShardConnections,
        acknowledger: Acknowledger,
        *,
        pool: MessagePool,
        name: NameReservation,
        parts: EngineParts,
    ) -> None:
        self.streams = streams = connections.streams
        self.connection, self._ack_connection = connections.read, connections.ack
        self._group, self._consumer_id = parts.group, parts.consumer_id
        self._name = name
        self._on_error = parts.on_error
        self._may_move = parts.topology.may_move
        self._unblocking: asyncio.Task[None] | None = None
        self.acknowledger = acknowledger
        outage = OutageWatch("Redis", f"nothing is read from {', '.join(streams)}")
        self._reconnect = Reconnect(parts.settings, self.connection.name, outage)
        self._reader = StreamReader(self.connection, parts)
        self.fetcher = Fetcher(
            streams,
            reader=self._reader,
            connection=self.connection,
            acknowledger=acknowledger,
            reconnect=self._reconnect,
            pool=pool,
            name=name,
            parts=parts,
        )

    @property
    def reconnects(self) -> int:
        """Reconnect attempts so far."""
        return self._reconnect.total + self.acknowledger.reconnects

    async def open(self) -> None:
        """Connect, create missing groups, and check that the server allows what the engine needs.

        Raises:
            ConnectionLostError: A connection could not be established.
            QueueError: The server refuses a command that the engine needs.
        """
        while True:
            try:
                await self.connection.open()
                await self._ack_connection.open()
                await self._reader.create_groups(self.streams)
                await self._check_rights()
                await self._name.reserve(self.streams, self.acknowledger.execute)
            except ConnectionLostError as lost:
                await self._wait_if_moved(lost)
            else:
                self._reconnect.succeeded()
                return

    def stop(self) -> None:
        """Stop fetching and end a blocking read."""
        self.fetcher.stop()
        self.unblock_soon()

    def fail(self, error: BaseException) -> None:
        """Stop, and make the fetcher raise this error."""
        self.fetcher.fail(error)
        self.unblock_soon()

    def pause_streams(self, streams: Collection[str]) -> None:
        """Fetch nothing from these streams. Streams of other shards are ignored."""
        self.fetcher.pause_streams(streams)
        if streams:
            self.unblock_soon()

    def abort(self) -> None:
        """Abort every current and future wait for the server. See ``AsyncRedisConnection.abort``."""
        self.connection.abort()
        self._ack_connection.abort()

    async def close(self) -> list[RuntimeMessage]:
        """Close the connections. Return the messages without a confirmed acknowledgement."""
        try:
            if self._unblocking is not None:
                await asyncio.gather(self._unblocking, return_exceptions=True)
            if self._ack_connection.is_open:
                with contextlib.suppress(ConnectionLostError):
                    await self._name.release(self.streams, self.acknowledger.execute)
            unacknowledged = await self.acknowledger.close()
            await self.connection.close()
        finally:
            self._reconnect.close()
        return unacknowledged

    async def _wait_if_moved(self, lost: ConnectionLostError) -> None:
        """Wait before a retry if a node redirected to another node. An unreachable server ends the start."""
        moved = self._may_move and isinstance(lost.reason, ResponseError) and not self.fetcher.is_stopping
        error = translate(lost.reason, stream=self.streams[0], group=self._group, command="XGROUP CREATE")
        delay_s = self._reconnect.delay_s(error, self.connection.address) if moved else None
        if delay_s is None:
            raise lost
        self._on_error(error)
        await asyncio.sleep(delay_s)

    async def _check_rights(self) -> None:
        """Check the rights of the server's user at the start, before any handler runs."""
        who = (self._group, self._consumer_id)
        replies = await self.connection.call([pack("EVAL", MAY_WORK, 1, stream, *who) for stream in self.streams])
        for stream, reply in zip(self.streams, replies, strict=True):
            if isinstance(reply, ResponseError):
                refused = translate(reply, stream=stream, group=self._group, command="EVAL")
                raise QueueError(
                    f"{refused}. An engine cannot do without: allow the server's user "
                    "EVAL, XACK, XAUTOCLAIM, XCLAIM, XPENDING and XREADGROUP on this key",
                    stream=stream,
                    group=self._group,
                    command="EVAL",
                ) from reply

    def unblock_soon(self) -> None:
        """End a blocking read without losing its entries."""
        if self.fetcher.is_blocked and (self._unblocking is None or self._unblocking.done()):
            self._unblocking = asyncio.create_task(self._unblock())

    async def _unblock(self) -> None:
        # This only speeds up the stop: without it, or without the right to it, the read ends after slice_ms.
        # Unblock the current read only: after a pause the next read must block again.
        read = self.fetcher.reads_begun
        with contextlib.suppress(ConnectionLostError):
            while (
                self.fetcher.is_blocked and self.fetcher.reads_begun == read and self.connection.client_id is not None
            ):
                # Client ids are unique per server: on another server this would unblock a foreign connection.
                if self.connection.peer == self._ack_connection.peer:
                    await self.acknowledger.execute([pack("CLIENT", "UNBLOCK", self.connection.client_id)])
                await asyncio.sleep(0.01)  # the UNBLOCK may have arrived before the read
