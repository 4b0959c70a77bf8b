"""Acknowledgements in batches: many ids in one XACK, sent with the next read where there is one.

    handler returned ──▶ due ──▶ sent ──▶ confirmed: the lease is not kept any more
                          ▲        │
                          └────────┴── connection lost: an error event, then sent again

Sending XACK again is harmless, so nothing finished is forgotten while the process lives. If it dies before the ids are
sent, the messages are delivered again: the preferred loss is a second run.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from conquiet.core.micro_batcher import MicroBatcher
from conquiet.errors import QueueError
from conquiet.metrics.registry import QUEUE_ACK_NOOP_TOTAL, QUEUE_MESSAGES_ACK_TOTAL, RUNTIME_ACK_BATCH_SIZE
from conquiet.metrics.safety import count, observe
from conquiet.redis_transport.async_connection import AsyncRedisConnection, ConnectionLostError
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.connection_id import ConnectionId
from conquiet.redis_transport.errors import NoPermissionError, ResponseError, translate
from conquiet.runtime.lease import LeaseTable
from conquiet.runtime.message import AckScript, RuntimeMessage
from conquiet.runtime.reconnect import Reconnect

_PERMANENT = ("NOGROUP", "WRONGTYPE", "NOPERM")
"""Refusals that another attempt cannot change. The ids stay pending on the server, if it still has them."""


def _command(how: str | AckScript, group: str, messages: Sequence[RuntimeMessage]) -> bytes:
    """Return the command for messages of one stream: XACK, or the script that they ask for."""
    if isinstance(how, str):
        return pack("XACK", how, group, *[message.id for message in messages])
    args = [value for message in messages for value in (message.id, *message.ack_args)]
    return pack("EVAL", how.source, len(how.keys), *how.keys, *how.head, *args)


class AckBatch:
    """Messages whose acknowledgements go out together, and the commands for it.

    The sender of the commands then calls ``confirm`` or ``requeue``.
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
        """Record the server's replies. What it refuses for the moment is due again, with the next batch."""
        self._acknowledger.confirm(self, replies)

    def requeue(self) -> None:
        """Make the batch due again: it may or may not have arrived."""
        self._acknowledger.requeue(self)


class Acknowledger:
    """Keeps what is due and sends it: with the reader's next command, or by itself when no read is coming.

    Args:
        connection: Used while the reader's own connection is blocked.
        group: The consumer group.
        table: Messages whose lease is kept until they are confirmed.
        reconnect: When to try again after ``connection`` breaks.
        on_error: Notified of every failed flush.

    Attributes:
        failed: Done with the last error once the connection is given up; cancelled once it was aborted.
    """

    def __init__(
        self,
        connection: AsyncRedisConnection,
        *,
        group: str,
        table: LeaseTable,
        reconnect: Reconnect,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._connection = connection
        self._group = group
        self._table = table
        self._reconnect = reconnect
        self._on_error = on_error
        self._due: MicroBatcher[RuntimeMessage] = MicroBatcher(self._flush_batch, name="conquiet-acks")
        self.add = self._due.add
        """Acknowledge a message soon: with all others of this iteration of the event loop."""
        self._unconfirmed = 0
        self._closed = False
        self._confirmed = asyncio.Event()
        self.failed: asyncio.Future[QueueError] | None = None
        # One user of the connection at a time: flushes, and callers of ``execute``.
        self._connection_lock = asyncio.Lock()

    @property
    def unconfirmed(self) -> int:
        """Messages that are due or sent, and not confirmed."""
        return len(self._due) + self._unconfirmed

    @property
    def _is_over(self) -> bool:
        """True once nothing is sent any more."""
        return self._closed or (self.failed is not None and self.failed.done())

    @property
    def reconnects(self) -> int:
        """Attempts to establish the lost connection again, so far."""
        return self._reconnect.total

    @property
    def is_open(self) -> bool:
        """True while the connection is established."""
        return self._connection.is_open

    @property
    def peer(self) -> Any:
        """The server of the connection."""
        return self._connection.peer

    @property
    def identity(self) -> ConnectionId | None:
        """See ``AsyncRedisConnection.identity``."""
        return self._connection.identity

    def call_when_lost(self, call: Callable[[], None]) -> None:
        """Call this when the connection has been closed, by the server too."""
        self._connection.on_lost = call

    async def open(self) -> None:
        """Establish the connection.

        Raises:
            ConnectionLostError: It could not be established.
        """
        await self._connection.open()

    def abort(self) -> None:
        """Abort every wait for the server, now and later."""
        self._connection.abort()

    def start(self) -> "asyncio.Future[QueueError]":
        """Prepare for the running event loop. Returns what is done when the connection is given up."""
        self.failed = asyncio.get_running_loop().create_future()
        return self.failed

    def expect_reader(self) -> None:
        """Leave what is due to the reader: its next command is a matter of microseconds."""
        self._due.held = True

    def expect_no_reader(self) -> None:
        """Send what is due by ourselves: no read comes soon."""
        if self._is_over:
            return
        self._due.held = False
        if self._due:
            self._due.flush_soon()

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """Acknowledge at once and return when the server has confirmed it.

        Raises:
            QueueError: It could not be sent. It may have taken effect.
        """
        batch = AckBatch([message], self._group, self)
        with message.settling():
            try:
                replies = await self.execute(batch.commands)
            except ConnectionLostError as lost:
                raise translate(lost.reason, stream=message.stream, group=self._group, command="XACK") from lost
            if isinstance(replies[0], ResponseError):
                raise translate(replies[0], stream=message.stream, group=self._group, command="XACK") from replies[0]
            message.mark_acknowledged()
        self._settle(batch, replies)

    async def execute(self, commands: list[bytes]) -> list[Any]:
        """Send other commands over the acknowledging connection, opening it if necessary.

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
        """Return what is due, for the reader to send."""
        if not self._due:
            return None
        return self._batch(self._due.take())

    def confirm(self, batch: AckBatch, replies: Sequence[Any]) -> None:
        """See ``AckBatch.confirm``."""
        self._unconfirmed -= len(batch.messages)
        self._due.requeue(self._settle(batch, replies))
        # The sender holds the batch while it decodes the next messages. Two generations of messages at once are enough
        # to start the garbage collector with every read.
        batch.messages, batch.parts = [], []

    def requeue(self, batch: AckBatch) -> None:
        """See ``AckBatch.requeue``."""
        self._unconfirmed -= len(batch.messages)
        self._due.requeue(batch.messages)

    async def flush(self) -> None:
        """Return when everything is confirmed, or when the connection is given up."""
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
        """Stop flushing. Return what was not confirmed. Nothing is sent afterwards."""
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
        """Let go of what is confirmed. Return what the server refuses now and may accept later."""
        later: list[RuntimeMessage] = []
        for (stream, messages), reply in zip(batch.parts, replies, strict=True):
            if isinstance(reply, ResponseError):
                self._on_error(translate(reply, stream=stream, group=self._group, command="XACK"))
                if not isinstance(reply, NoPermissionError) and not str(reply).startswith(_PERMANENT):
                    later += messages  # too few replicas, a full disk: the work is done, and must not be done again
                    continue
            else:
                count(QUEUE_MESSAGES_ACK_TOTAL, stream, n=reply)
                count(QUEUE_ACK_NOOP_TOTAL, stream, n=len(messages) - reply)
            self._table.release_all(stream, messages)
        observe(RUNTIME_ACK_BATCH_SIZE, value=len(batch.messages))
        self._confirmed.set()
        return later

    async def _flush_batch(self, messages: list[RuntimeMessage]) -> None:
        """Send one batch over our own connection."""
        batch = self._batch(messages)
        try:
            replies = await self.execute(batch.commands)
        except ConnectionLostError as lost:
            self.requeue(batch)
            error = translate(lost.reason, stream=messages[0].stream, group=self._group, command="XACK")
            await self._wait_before_retry(error, self._on_error)
            return
        except BaseException:
            self.requeue(batch)
            raise
        refused = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
        self.confirm(batch, replies)
        if refused is None or not self._due:
            self._reconnect.succeeded()
        else:
            await self._wait_before_retry(
                translate(refused, stream=messages[0].stream, group=self._group, command="XACK")
            )

    async def _wait_before_retry(
        self, error: QueueError, report: Callable[[BaseException], None] = lambda _: None
    ) -> None:
        """Wait before the next attempt, or give the connection up. A refusal was reported with its batch."""
        address = self._connection.address
        delay_s = None if self._connection.is_aborted else self._reconnect.delay_s(error, address)
        report(error)
        if delay_s is not None:
            await asyncio.sleep(delay_s)
            return
        self._due.held = True  # what is due stays due, and is reported at the end
        if self.failed is not None and not self.failed.done():
            if self._connection.is_aborted:
                self.failed.cancel()
            else:
                self.failed.set_result(error)
