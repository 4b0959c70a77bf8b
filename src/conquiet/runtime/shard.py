"""Streams that one command can read together, with the connections to fetch and acknowledge them.

One server has one shard. A Redis Cluster has one shard for each slot that holds a stream.

See docs/decisions/0015.
"""

import asyncio
import contextlib
from collections.abc import Collection

from conquiet.errors import QueueError
from conquiet.metrics.outages import OutageWatch
from conquiet.redis_transport.async_connection import AsyncRedisConnection, ConnectionLostError
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError, translate
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.fetcher import Fetcher
from conquiet.runtime.message import RuntimeMessage
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


class Shard:
    """A reader and an acknowledger with separate connections: the reader's may be blocked.

    Args:
        streams: Streams to fetch.
        connection: The reader's connection.
        acknowledger: Acknowledges their messages.
        may_move: True if the streams may move to another server, as in a cluster.
        parts: The parts that all shards of the engine share.
    """

    def __init__(
        self,
        streams: tuple[str, ...],
        *,
        connection: AsyncRedisConnection,
        acknowledger: Acknowledger,
        may_move: bool,
        parts: EngineParts,
    ) -> None:
        self.streams = streams
        self._group, self._consumer_id = parts.group, parts.consumer_id
        self._name = parts.name
        self._on_error = parts.on_error
        self._may_move = may_move
        self._unblocking: asyncio.Task[None] | None = None
        self.acknowledger = acknowledger
        self.connection = connection
        outage = OutageWatch("Redis", f"nothing is read from {', '.join(streams)}")
        self._reconnect = Reconnect(parts.settings.reconnect, parts.settings.max_reconnects, connection.name, outage)
        self._reader = StreamReader(
            connection,
            group=parts.group,
            consumer_id=parts.consumer_id,
            settings=parts.settings,
            table=parts.table,
            on_error=parts.on_error,
            handles_malformed=parts.handles_malformed,
        )
        self.fetcher = Fetcher(
            streams,
            reader=self._reader,
            connection=connection,
            acknowledger=acknowledger,
            reconnect=self._reconnect,
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
                await self.acknowledger.open()
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
        self.acknowledger.abort()

    async def close(self) -> list[RuntimeMessage]:
        """Close the connections. Return the messages without a confirmed acknowledgement."""
        try:
            if self._unblocking is not None:
                await asyncio.gather(self._unblocking, return_exceptions=True)
            if self.acknowledger.is_open:
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
                if self.connection.peer == self.acknowledger.peer:
                    await self.acknowledger.execute([pack("CLIENT", "UNBLOCK", self.connection.client_id)])
                await asyncio.sleep(0.01)  # the UNBLOCK may have arrived before the read
