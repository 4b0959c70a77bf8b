"""Commands for single entries that this engine owns: acknowledge, extend, charge, release."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from conquiet.metrics.registry import RUNTIME_LEASES_LOST_TOTAL, RUNTIME_RELEASED_TOTAL
from conquiet.metrics.safety import count
from conquiet.redis_transport.async_connection import ConnectionLostError
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError, translate
from conquiet.redis_transport.stream_scripts import EXTEND_LEASE
from conquiet.runtime import release
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.claiming import CHARGE
from conquiet.runtime.lease_table import LeaseTable, lease_lost
from conquiet.runtime.message import RuntimeMessage


class Leases:
    """The leases of one engine. Implements ``LeaseManager`` for every context.

    Args:
        acknowledgers: Acknowledgers by stream. Commands use their connections.
        group: The consumer group.
        consumer_id: Name of the engine in it.
        claim_idle_s: Duration of an extension.
        table: Messages under lease.
        on_error: Called for lost leases, with their message, and for failed releases.
    """

    def __init__(
        self,
        acknowledgers: Mapping[str, Acknowledger],
        *,
        group: str,
        consumer_id: str,
        claim_idle_s: float,
        table: LeaseTable,
        on_error: Callable[[BaseException, RuntimeMessage | None], None],
    ) -> None:
        self._acknowledgers = acknowledgers
        self.group = group
        self._consumer_id = consumer_id
        self.claim_idle_s = claim_idle_s
        self._table = table
        self._on_error = on_error

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """See ``MessageContext.ack``."""
        await self._acknowledgers[message.stream].acknowledge(message)

    def acknowledge_soon(self, message: RuntimeMessage) -> None:
        """Acknowledge in a batch with others."""
        self._acknowledgers[message.stream].add(message)

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
        await asyncio.gather(*(one.flush() for one in set(self._acknowledgers.values())))

    def report_lost(self, message: RuntimeMessage) -> None:
        """Count and report a lost lease."""
        count(RUNTIME_LEASES_LOST_TOTAL, message.stream)
        self._on_error(lease_lost(message), message)

    async def _release(self, acknowledger: Acknowledger, messages: list[RuntimeMessage]) -> int:
        commands = release.commands(messages, self.group, self._consumer_id)
        released = [0] * len(commands)
        try:
            released = release.released(await acknowledger.execute(list(commands.values())))
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
