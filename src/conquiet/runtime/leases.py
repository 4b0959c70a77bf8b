"""Commands for entries that this engine owns: acknowledge, extend, charge, release.

A released message is uncharged, and another consumer can start it immediately. Redis cannot undo a delivery, but XCLAIM
can set its metadata: an idle time that makes the entry stale for every consumer, and the previous delivery count, so
that a stop or an outage costs no delivery. The same script checks the owner: an entry of another consumer is not
changed. XNACK (Redis 8.8) would do the same. It is not used because XCLAIM works on every supported server.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from conquiet.metrics.registry import RUNTIME_LEASES_LOST_TOTAL, RUNTIME_RELEASED_TOTAL
from conquiet.metrics.safety import count
from conquiet.redis_transport.async_connection import ConnectionLostError
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError, translate
from conquiet.redis_transport.stream_scripts import EXTEND_LEASE
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.claiming import CHARGE
from conquiet.runtime.lease_table import lease_lost
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.settings import RELEASED_IDLE_MS

RELEASE = """
local given = 0
for i = 4, #ARGV, 2 do
  local row = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #row == 1 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    given = given + 1
  end
end
return given
"""
"""KEYS: stream; ARGV: group, consumer, idle time, then pairs of id and delivery count. Returns how many were owned."""


class Leases:
    """The leases of one engine. Implements ``LeaseManager`` for every context.

    Args:
        acknowledgers: Acknowledgers by stream. Commands use their connections.
        parts: The parts that all parts of the engine share.

    Attributes:
        acknowledge_soon: Acknowledges a message in a batch with others.
    """

    def __init__(self, acknowledgers: Mapping[str, Acknowledger], parts: EngineParts) -> None:
        self._acknowledgers = acknowledgers
        self.group, self._consumer_id = parts.group, parts.consumer_id
        self.claim_idle_s = parts.settings.claim_idle_s
        self._table, self._on_error = parts.table, parts.on_error
        self._distinct = set(acknowledgers.values())
        # Called for every message: with a single acknowledger there is nothing to look up.
        self.acknowledge_soon = self._acknowledge_soon if len(self._distinct) > 1 else next(iter(self._distinct)).add

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """See ``MessageContext.ack``."""
        await self._acknowledgers[message.stream].acknowledge(message)

    async def extend(self, message: RuntimeMessage) -> bool:
        """See ``MessageContext.extend``."""
        now = time.monotonic()
        ours = bool(await self._call(message, EXTEND_LEASE, message.id))
        if ours:
            message.leased_at = now
        elif message.lose():
            self.report_lost(message)
        return ours

    async def charge(self, message: RuntimeMessage) -> bool:
        """Count this delivery on the server. False if another consumer owns the message.

        Raises:
            QueueError: The server returned an error or did not reply.
        """
        return bool(await self._call(message, CHARGE, message.id, message.delivery_count))

    async def release(self, messages: list[RuntimeMessage]) -> int:
        """Release messages to the group, uncharged. Return how many the servers accepted."""
        by_connection: dict[Acknowledger, list[RuntimeMessage]] = {}
        for message in messages:
            by_connection.setdefault(self._acknowledgers[message.stream], []).append(message)
        # Concurrently: a node that does not reply must not delay the others.
        return sum(await asyncio.gather(*(self._release(*those) for those in by_connection.items())))

    async def flush(self) -> None:
        """Return when all acknowledgements are confirmed."""
        await asyncio.gather(*(one.flush() for one in self._distinct))

    def report_lost(self, message: RuntimeMessage) -> None:
        """Count and report a lost lease."""
        count(RUNTIME_LEASES_LOST_TOTAL, message.stream)
        self._on_error(lease_lost(message), message)

    def _acknowledge_soon(self, message: RuntimeMessage) -> None:
        self._acknowledgers[message.stream].add(message)

    async def _release(self, acknowledger: Acknowledger, messages: list[RuntimeMessage]) -> int:
        commands = release_commands(messages, self.group, self._consumer_id)
        released = [0] * len(commands)
        try:
            released = released_by(await acknowledger.execute(list(commands.values())))
        except ConnectionLostError as lost:
            error = translate(lost.reason, stream=messages[0].stream, group=self.group, command="XCLAIM")
            self._on_error(error, None)
        for message in messages:
            self._table.release(message)
        for stream, number in zip(commands, released, strict=True):
            count(RUNTIME_RELEASED_TOTAL, stream, n=number)
        return sum(released)

    async def _call(self, message: RuntimeMessage, script: str, *args: str | int) -> Any:
        packed = pack("EVAL", script, 1, message.stream, self.group, self._consumer_id, *args)
        try:
            (reply,) = await self._acknowledgers[message.stream].execute([packed])
        except ConnectionLostError as lost:
            raise translate(lost.reason, stream=message.stream, group=self.group, command="XCLAIM") from lost.reason
        if isinstance(reply, ResponseError):
            raise translate(reply, stream=message.stream, group=self.group, command="XCLAIM") from reply
        return reply


def release_commands(messages: Sequence[RuntimeMessage], group: str, consumer_id: str) -> dict[str, bytes]:
    """Return one packed command per stream. An entry delivered once is released with a delivery count of 0."""
    by_stream: dict[str, list[str | int]] = {}
    for message in messages:
        by_stream.setdefault(message.stream, []).extend((message.id, max(message.delivery_count - 1, 0)))
    who = group, consumer_id, RELEASED_IDLE_MS
    return {stream: pack("EVAL", RELEASE, 1, stream, *who, *pairs) for stream, pairs in by_stream.items()}


def released_by(replies: Sequence[Any]) -> list[int]:
    """Return how many entries of each stream were released, 0 for an error reply (scripts forbidden)."""
    return [0 if isinstance(reply, ResponseError) else int(reply) for reply in replies]
