"""The streams that one command can read together, and everything it takes to fetch and acknowledge them.

One server has one shard. A Redis Cluster has one for each slot that a stream lies in.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping

from redis.exceptions import ResponseError

from conquiet.errors import QueueError
from conquiet.queue.commands import pack
from conquiet.queue.faults import translate
from conquiet.queue.scripts import EXTEND_LEASE
from conquiet.runtime import handover
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.context import RuntimeMessage
from conquiet.runtime.intake import Intake
from conquiet.runtime.lease import LeaseTable
from conquiet.runtime.metrics import StreamTally, observe_handed_back
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.room import Room
from conquiet.runtime.servers import Servers
from conquiet.runtime.settings import RuntimeSettings
from conquiet.runtime.stream_reader import StreamReader
from conquiet.runtime.wire import Wire, WireLostError

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
"""Do nothing, and fail if we may not do what we shall have to. Before Redis 7 only EVAL and XPENDING are found out."""


class Shard:
    """A reader with its connection, and a connection for acknowledgements while the first one is blocked.

    Args:
        streams: What to fetch.
        servers: Where from.
        who: The consumer group, and our name in it.
        settings: Times and limits.
        room: What may still be fetched, shared with the other shards.
        table: What we hold.
        tallies: Counts per stream.
        on_error: Told about everything that goes wrong.
    """

    def __init__(
        self,
        streams: tuple[str, ...],
        *,
        servers: Servers,
        who: tuple[str, str],
        settings: RuntimeSettings,
        room: Room,
        table: LeaseTable,
        tallies: Mapping[str, StreamTally],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.streams = streams
        self._group, self._consumer_id = group, consumer_id = who
        self._table = table
        self._on_error = on_error
        self._may_move = servers.may_move
        self._unblocking: asyncio.Task[None] | None = None
        self.read_wire = Wire(servers, streams[0], "read")
        self._ack_wire = Wire(servers, streams[0], "ack")
        self._reconnects = [
            Reconnect(settings.reconnect, settings.max_reconnects, wire.name)
            for wire in (self.read_wire, self._ack_wire)
        ]
        self._reader = StreamReader(
            self.read_wire, group=group, consumer_id=consumer_id, settings=settings, table=table, on_error=on_error
        )
        self.intake = Intake(
            streams,
            reader=self._reader,
            wire=self.read_wire,
            room=room,
            settings=settings,
            tallies=tallies,
            reconnect=self._reconnects[0],
            on_error=on_error,
        )
        self.acknowledger = Acknowledger(
            self._ack_wire,
            group=group,
            table=table,
            reconnect=self._reconnects[1],
            on_error=on_error,
            on_given_up=self._give_up,
            reader_is_coming=self.intake.will_come,
        )

    @property
    def reconnects(self) -> int:
        """Attempts to get a lost connection back, so far."""
        return sum(reconnect.total for reconnect in self._reconnects)

    async def open(self) -> None:
        """Connect, create the groups that are not there, and see whether we may do what we shall have to.

        Raises:
            WireLostError: A connection could not be had.
            QueueError: The server refuses something that the engine cannot do without.
        """
        while True:
            try:
                await self.read_wire.open()
                await self._ack_wire.open()
                await self._reader.create_groups(self.streams)
                await self._check_rights()
            except WireLostError as lost:
                await self._look_again(lost)
            else:
                self._reconnects[0].succeeded()
                return

    def stop(self) -> None:
        """Fetch nothing more, and end a read that waits."""
        self.intake.stop()
        self._unblock_soon()

    def withhold(self, streams: Collection[str]) -> None:
        """Fetch nothing from those of our streams that are among these."""
        self.intake.withhold(streams)
        if streams:
            self._unblock_soon()

    async def extend(self, message: RuntimeMessage) -> bool:
        """Ask the server to leave the message with us for another while. False if it is not ours any more.

        Raises:
            QueueError: It refused, or did not answer.
        """
        packed = pack("EVAL", EXTEND_LEASE, 1, message.stream, self._group, self._consumer_id, message.id)
        try:
            (reply,) = await self.acknowledger.borrow([packed])
        except WireLostError as lost:
            raise translate(lost.reason, stream=message.stream, group=self._group, command="XCLAIM") from lost.reason
        if isinstance(reply, ResponseError):
            raise translate(reply, stream=message.stream, group=self._group, command="XCLAIM") from reply
        return bool(reply)

    async def hand_back(self, messages: list[RuntimeMessage]) -> int:
        """Give unstarted messages of ours back to the group, uncharged. Returns how many it took."""
        commands = handover.commands(messages, self._group, self._consumer_id)
        given = [0] * len(commands)
        if commands:
            try:
                given = handover.given_back(await self.acknowledger.borrow(list(commands.values())))
            except WireLostError as lost:
                self._on_error(translate(lost.reason, stream=messages[0].stream, group=self._group, command="XCLAIM"))
        for message in messages:
            self._table.release(message)
        for stream, count in zip(commands, given, strict=True):
            observe_handed_back(stream, count)
        return sum(given)

    def cut(self) -> None:
        """Break off whatever waits for the server, and let nothing wait for it again. See ``Wire.cut``."""
        self.read_wire.cut()
        self._ack_wire.cut()

    async def close(self) -> list[RuntimeMessage]:
        """Close the connections. Returns what was not confirmed to be acknowledged."""
        if self._unblocking is not None:
            await asyncio.gather(self._unblocking, return_exceptions=True)
        unacknowledged = await self.acknowledger.close()
        await self.read_wire.close()
        await self._ack_wire.close()
        return unacknowledged

    def _give_up(self, error: QueueError) -> None:
        """Nothing can be acknowledged any more: an engine that went on would do everything again elsewhere."""
        self.intake.fail(error)
        self._unblock_soon()

    async def _look_again(self, lost: WireLostError) -> None:
        """Wait a little if a node said that the slot is elsewhere. A server that is not there ends the start."""
        moved = self._may_move and isinstance(lost.reason, ResponseError) and not self.intake.is_stopping
        delay_s = self._reconnects[0].delay_s() if moved else None
        if delay_s is None:
            raise lost
        stream = self.streams[0]
        self._on_error(translate(lost.reason, stream=stream, group=self._group, command="XGROUP CREATE"))
        await asyncio.sleep(delay_s)

    async def _check_rights(self) -> None:
        """Find out at the start whether we may work: not when handlers have run and cannot be acknowledged."""
        who = (self._group, self._consumer_id)
        replies = await self.read_wire.call([pack("EVAL", MAY_WORK, 1, stream, *who) for stream in self.streams])
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

    def _unblock_soon(self) -> None:
        if self.intake.is_blocked and (self._unblocking is None or self._unblocking.done()):
            self._unblocking = asyncio.create_task(self._unblock())

    async def _unblock(self) -> None:
        # Only to be quick: without it (or without the right to it) the read ends with its slice.
        # And only the read that waits now: after a pause the next one waits as well, and rightly.
        read = self.intake.reads_begun
        with contextlib.suppress(WireLostError):
            while self.intake.is_blocked and self.intake.reads_begun == read and self.read_wire.client_id is not None:
                # Numbers of connections are each server's own: on another one it would hit a stranger.
                if self.read_wire.peer == self._ack_wire.peer:
                    await self.acknowledger.borrow([pack("CLIENT", "UNBLOCK", self.read_wire.client_id)])
                await asyncio.sleep(0.01)  # it may have come before the read itself
