"""Acknowledge in batches: many ids in one XACK, sent in the same write as the next read if one is due.

    handler returned ──▶ due ──▶ sent ──▶ confirmed: the lease is released
                          ▲        │
                          └────────┴── connection lost: an error event, then sent again

XACK is idempotent, so the acknowledger resends until the server confirms. If the process is killed before the ids are
sent, the messages are delivered again: the preferred loss is a second run.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from conquiet.core.micro_batcher import MicroBatcher
from conquiet.errors import QueueError
from conquiet.metrics.outages import OutageWatch
from conquiet.metrics.registry import QUEUE_ACK_NOOP_TOTAL, QUEUE_MESSAGES_ACK_TOTAL, RUNTIME_ACK_BATCH_SIZE
from conquiet.metrics.safety import count, observe
from conquiet.redis_transport.async_connection import AsyncRedisConnection, ConnectionLostError
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import NoPermissionError, RedisError, ResponseError, translate
from conquiet.runtime.message import AckScript, RuntimeMessage
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.reconnect import Reconnect

_PERMANENT = ("NOGROUP", "WRONGTYPE", "NOPERM")
"""Errors that a retry cannot fix. The ids stay pending on the server, if it still has them."""


def _command(how: str | AckScript, group: str, messages: Sequence[RuntimeMessage]) -> bytes:
    """Return the command for messages of one stream: XACK, or their ``ack_script``."""
    if isinstance(how, str):
        return pack("XACK", how, group, *[message.id for message in messages])
    args = [value for message in messages for value in (message.id, *message.ack_args)]
    return pack("EVAL", how.source, len(how.keys), *how.keys, *how.head, *args)


class AckBatch:
    """Messages that are acknowledged together, and the commands that do it.

    The sender of the commands calls ``confirm`` or ``requeue`` afterwards.
    """

    __slots__ = ("_acknowledger", "commands", "messages", "parts")

    def __init__(self, messages: list[RuntimeMessage], group: str, acknowledger: "Acknowledger") -> None:
        self._acknowledger = acknowledger
        self.messages = messages
        by_command: dict[str | AckScript, list[RuntimeMessage]] = defaultdict(list)
        for message in messages:
            by_command[message.ack_script or message.stream].append(message)
        self.parts = [(those[0].stream, those) for those in by_command.values()]
        self.commands = [_command(how, group, those) for how, those in by_command.items()]

    def confirm(self, replies: Sequence[Any]) -> None:
        """Record the server's replies. Temporarily refused messages become due again with the next batch."""
        self._acknowledger.confirm(self, replies)

    def requeue(self) -> None:
        """Make the batch due again. The server may have received it or not."""
        self._acknowledger.requeue(self)


class Acknowledger:
    """Collects acknowledgements and sends them: with the reader's next command, or separately if no read is due.

    Args:
        connection: Used while the reader's connection is blocked.
        parts: The parts that all parts of the engine share. A message is removed from the table once its
            acknowledgement is confirmed.

    Attributes:
        failed: Future that gets the last error when reconnecting is given up. Cancelled if the connection is aborted.
    """

    def __init__(self, connection: AsyncRedisConnection, parts: EngineParts) -> None:
        self._connection = connection
        self._group, self._table, self._on_error = parts.group, parts.table, parts.on_error
        outage = OutageWatch("Redis", "nothing is read or acknowledged")
        self._reconnect = Reconnect(parts.settings, connection.name, outage)
        self._due: MicroBatcher[RuntimeMessage] = MicroBatcher(self._flush_batch, name="conquiet-acks")
        self.add = self._due.add
        """Acknowledge a message in one batch with all others of this event loop iteration."""
        self._unconfirmed = 0
        self._closed = False
        self._confirmed = asyncio.Event()
        self.failed: asyncio.Future[QueueError] | None = None
        # Serializes flushes and callers of ``execute`` on the connection.
        self._connection_lock = asyncio.Lock()

    @property
    def unconfirmed(self) -> int:
        """Messages that are due or sent but not confirmed."""
        return len(self._due) + self._unconfirmed

    @property
    def _is_over(self) -> bool:
        """True after the last send: closed, or reconnecting was given up."""
        return self._closed or (self.failed is not None and self.failed.done())

    @property
    def reconnects(self) -> int:
        """Reconnect attempts so far."""
        return self._reconnect.total

    def start(self) -> "asyncio.Future[QueueError]":
        """Bind to the running event loop. Return ``failed``, which completes when reconnecting is given up."""
        self.failed = asyncio.get_running_loop().create_future()
        return self.failed

    def expect_reader(self) -> None:
        """Hold due acknowledgements for the reader, which sends its next command within microseconds."""
        self._due.held = True

    def expect_no_reader(self) -> None:
        """Send due acknowledgements on this connection, because no read follows soon."""
        if self._is_over:
            return
        self._due.held = False
        if self._due:
            self._due.flush_soon()

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """Acknowledge without batching and return when the server has confirmed it.

        Raises:
            QueueError: It could not be sent. It may have taken effect.
        """
        batch = AckBatch([message], self._group, self)
        with message.settling():
            try:
                replies = await self.execute(batch.commands)
            except ConnectionLostError as lost:
                raise self._translated(lost.reason, message.stream) from lost
            if isinstance(replies[0], ResponseError):
                raise self._translated(replies[0], message.stream) from replies[0]
            message.mark_acknowledged()
        self._settle(batch, replies)

    async def execute(self, commands: list[bytes]) -> list[Any]:
        """Send other commands over the acknowledging connection. Opens it if necessary.

        Raises:
            ConnectionLostError: The connection broke or could not be opened.
        """
        async with self._connection_lock:
            if self._closed:
                raise ConnectionLostError(ConnectionError("the engine has ended"))
            if not self._connection.is_open:
                await self._connection.open()
            return await self._connection.call(commands)

    def take_batch(self) -> AckBatch | None:
        """Return the due acknowledgements for the reader to send."""
        if not self._due:
            return None
        return self._batch(self._due.take())

    def confirm(self, batch: AckBatch, replies: Sequence[Any]) -> None:
        """See ``AckBatch.confirm``."""
        self._unconfirmed -= len(batch.messages)
        self._due.requeue(self._settle(batch, replies))
        # The sender holds the batch while it decodes the next messages. Two generations of messages alive together are
        # enough to start the garbage collector with every read.
        batch.messages, batch.parts = [], []

    def requeue(self, batch: AckBatch) -> None:
        """See ``AckBatch.requeue``."""
        self._unconfirmed -= len(batch.messages)
        self._due.requeue(batch.messages)

    async def flush(self) -> None:
        """Return when everything is confirmed, or when reconnecting is given up."""
        while self.unconfirmed and self.failed is not None and not self._is_over:
            self._confirmed.clear()
            if self._due and not self._due.held:
                self._due.flush_soon()
            waiting: asyncio.Future[Any] = asyncio.ensure_future(self._confirmed.wait())
            try:
                await asyncio.wait({waiting, self.failed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()

    async def close(self) -> list[RuntimeMessage]:
        """Stop flushing and return the unconfirmed messages. Nothing is sent afterwards."""
        self._closed = True
        left = await self._due.close()
        await self._connection.close()
        if self.failed is not None and not self.failed.done():
            self.failed.cancel()
        return left

    def _batch(self, messages: list[RuntimeMessage]) -> AckBatch:
        batch = AckBatch(messages, self._group, self)
        self._unconfirmed += len(messages)
        return batch

    def _settle(self, batch: AckBatch, replies: Sequence[Any]) -> list[RuntimeMessage]:
        """Release the leases of confirmed messages. Return the messages that the server may accept later."""
        later: list[RuntimeMessage] = []
        for (stream, messages), reply in zip(batch.parts, replies, strict=True):
            if isinstance(reply, ResponseError):
                self._on_error(self._translated(reply, stream))
                if not isinstance(reply, NoPermissionError) and not str(reply).startswith(_PERMANENT):
                    later += messages  # too few replicas, a full disk: resend, because the work is done
                    continue
            else:
                count(QUEUE_MESSAGES_ACK_TOTAL, stream, n=reply)
                count(QUEUE_ACK_NOOP_TOTAL, stream, n=len(messages) - reply)
            self._table.release_all(stream, messages)
        observe(RUNTIME_ACK_BATCH_SIZE, value=len(batch.messages))
        self._confirmed.set()
        return later

    async def _flush_batch(self, messages: list[RuntimeMessage]) -> None:
        """Send one batch over the acknowledging connection."""
        batch = self._batch(messages)
        try:
            replies = await self.execute(batch.commands)
        except ConnectionLostError as lost:
            self.requeue(batch)
            await self._wait_before_retry(self._translated(lost.reason, messages[0].stream), self._on_error)
            return
        except BaseException:
            self.requeue(batch)
            raise
        refused = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
        self.confirm(batch, replies)
        if refused is None or not self._due:
            self._reconnect.succeeded()
        else:
            await self._wait_before_retry(self._translated(refused, messages[0].stream))

    def _translated(self, cause: RedisError | OSError, stream: str) -> QueueError:
        return translate(cause, stream=stream, group=self._group, command="XACK")

    async def _wait_before_retry(
        self, error: QueueError, report: Callable[[BaseException], None] = lambda _: None
    ) -> None:
        """Wait before the next attempt, or give up. Server errors were reported with their batch."""
        address = self._connection.address
        delay_s = None if self._connection.is_aborted else self._reconnect.delay_s(error, address)
        report(error)
        if delay_s is not None:
            await asyncio.sleep(delay_s)
            return
        self._due.held = True  # due messages stay due and are reported by close()
        if self.failed is not None and not self.failed.done():
            if self._connection.is_aborted:
                self.failed.cancel()
            else:
                self.failed.set_result(error)
