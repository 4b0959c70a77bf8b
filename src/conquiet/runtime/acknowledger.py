"""Acknowledgements gathered: many ids in one XACK, sent with the next read where there is one.

    handler returned ──▶ due ──▶ sent ──▶ confirmed: no longer held
                          ▲        │
                          └────────┴── connection lost: an error event, then sent again

Sending XACK again is harmless, so nothing finished is forgotten while the process lives. If it dies
before the ids are sent, the messages are delivered again: the preferred loss is a second run.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from conquiet.errors import QueueError
from conquiet.metrics.registry import QUEUE_ACK_NOOP_TOTAL, QUEUE_MESSAGES_ACK_TOTAL
from conquiet.metrics.safety import never_raises
from conquiet.queue.commands import pack
from conquiet.queue.faults import translate
from conquiet.runtime.context import Leaving, RuntimeMessage
from conquiet.runtime.lease import LeaseTable
from conquiet.runtime.metrics import observe_ack_batch
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.wire import Wire, WireLostError

_FOR_GOOD = ("NOGROUP", "WRONGTYPE", "NOPERM")
"""Refusals that another attempt cannot better. The ids stay pending on the server, if there is anything left."""


class AckBatch:
    """Messages whose acknowledgements go out together, and the commands for it."""

    __slots__ = ("by_stream", "commands", "messages")

    def __init__(self, messages: list[RuntimeMessage], group: str) -> None:
        self.messages = messages
        self.by_stream: dict[str, list[RuntimeMessage]] = defaultdict(list)
        for message in messages:
            self.by_stream[message.stream].append(message)
        self.commands = [
            pack("XACK", stream, group, *[message.id for message in those]) for stream, those in self.by_stream.items()
        ]


class Acknowledger:
    """Keeps what is due and sends it: with the reader's next command, or by itself when none is coming.

    Args:
        wire: A connection for the time the reader's own one is blocked.
        group: The consumer group.
        table: Where a confirmed message is let go of.
        reconnect: What to do when ``wire`` breaks.
        on_error: Told about every failed flush.
        on_given_up: Called with the last error when the connection is not to be had back.
        reader_is_coming: True if the reader will take what is due at the next turn of the loop.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        group: str,
        table: LeaseTable,
        reconnect: Reconnect,
        on_error: Callable[[BaseException], None],
        on_given_up: Callable[[QueueError], None],
        reader_is_coming: Callable[[], bool],
    ) -> None:
        self._wire = wire
        self._group = group
        self._table = table
        self._reconnect = reconnect
        self._on_error = on_error
        self._on_given_up = on_given_up
        self._reader_is_coming = reader_is_coming
        self._due: list[RuntimeMessage] = []
        self._unconfirmed = 0
        self._nudged = False
        self._closed = False
        self._wake = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # One user of the wire at a time: flushes, and whoever borrows it.
        self._wire_lock = asyncio.Lock()

    @property
    def unconfirmed(self) -> int:
        """Messages that are due or on their way."""
        return len(self._due) + self._unconfirmed

    def start(self) -> None:
        """Begin to flush."""
        self._task = asyncio.create_task(self._serve(), name="conquiet-acks")

    def add(self, message: RuntimeMessage) -> None:
        """Acknowledge this message soon: at the next turn of the event loop, with all others of this turn."""
        self._due.append(message)
        if not self._nudged:
            self._nudged = True
            asyncio.get_running_loop().call_soon(self.nudge)

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """Acknowledge at once and return when the server has confirmed it.

        Raises:
            QueueError: It could not be sent. It may have taken effect.
        """
        batch = AckBatch([message], self._group)
        with Leaving(message):
            try:
                replies = await self.borrow(batch.commands)
            except WireLostError as lost:
                raise translate(lost.reason, stream=message.stream, group=self._group, command="XACK") from lost
            if isinstance(replies[0], ResponseError):
                raise translate(replies[0], stream=message.stream, group=self._group, command="XACK") from replies[0]
            message.acknowledged = True
        self._settle(batch, replies)

    async def borrow(self, commands: list[bytes]) -> list[Any]:
        """Send other commands over the flushing connection, opening it if need be.

        Raises:
            WireLostError: The connection broke or was not to be had.
        """
        async with self._wire_lock:
            if self._closed:
                raise WireLostError(ConnectionError("the engine has ended"))
            if not self._wire.is_open:
                await self._wire.open()
            return await self._wire.call(commands)

    def take(self) -> AckBatch | None:
        """Hand what is due to the reader, which sends it and must then confirm it or put it back."""
        if not self._due:
            return None
        batch = AckBatch(self._due, self._group)
        self._due = []
        self._unconfirmed += len(batch.messages)
        return batch

    def confirm(self, batch: AckBatch, replies: Sequence[Any]) -> None:
        """The server has answered. What it refuses for the moment is due again, with the next batch."""
        self._unconfirmed -= len(batch.messages)
        self._due[:0] = self._settle(batch, replies)

    def put_back(self, batch: AckBatch) -> None:
        """The batch may or may not have arrived: it is due again."""
        self._unconfirmed -= len(batch.messages)
        self._due[:0] = batch.messages
        self._wake.set()

    async def flush(self) -> None:
        """Return when nothing is due any more, or when nobody sends any more."""
        while self.unconfirmed and self._task is not None and not self._task.done():
            self._confirmed.clear()
            self._wake.set()
            waiting = asyncio.ensure_future(self._confirmed.wait())
            try:
                await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()

    async def close(self) -> list[RuntimeMessage]:
        """End the flushing. Returns what was not confirmed. Nothing is sent afterwards, whoever asks."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        left, self._due = self._due, []
        return left

    def nudge(self) -> None:
        """Send what is due now, unless the reader is about to."""
        self._nudged = False
        if self._due and not self._reader_is_coming():
            self._wake.set()

    def _settle(self, batch: AckBatch, replies: Sequence[Any]) -> list[RuntimeMessage]:
        """Let go of what is settled. Returns what the server refuses now and may take later."""
        later: list[RuntimeMessage] = []
        for (stream, messages), reply in zip(batch.by_stream.items(), replies, strict=True):
            if isinstance(reply, ResponseError):
                self._on_error(translate(reply, stream=stream, group=self._group, command="XACK"))
                if not isinstance(reply, NoPermissionError) and not str(reply).startswith(_FOR_GOOD):
                    later += messages  # too few replicas, a full disk: our work is done, and must not be done again
                    continue
            else:
                _count(stream, acknowledged=reply, sent=len(messages))
            self._table.release_all(stream, messages)
        observe_ack_batch(len(batch.messages))
        self._confirmed.set()
        return later

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = self.take()
            if batch is not None and not await self._send(batch):
                return

    async def _send(self, batch: AckBatch) -> bool:
        """Send one batch. False once the connection is given up."""
        try:
            replies = await self.borrow(batch.commands)
        except WireLostError as lost:
            self.put_back(batch)
            error = translate(lost.reason, stream=batch.messages[0].stream, group=self._group, command="XACK")
            error.__cause__ = lost.reason
            self._on_error(error)
            return await self._rest(error)
        except BaseException:
            self.put_back(batch)
            raise
        refused = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
        self.confirm(batch, replies)
        if refused is None or not self._due:
            self._reconnect.succeeded()
            return True
        error = translate(refused, stream=batch.messages[0].stream, group=self._group, command="XACK")
        self._wake.set()
        return await self._rest(error)

    async def _rest(self, error: QueueError) -> bool:
        """Wait before the next attempt. False if there is none."""
        if self._wire.is_cut:
            return False
        delay_s = self._reconnect.delay_s()
        if delay_s is None:
            self._on_given_up(error)
            return False
        await asyncio.sleep(delay_s)
        return True


@never_raises
def _count(stream: str, *, acknowledged: int, sent: int) -> None:
    QUEUE_MESSAGES_ACK_TOTAL.labels(stream).inc(acknowledged)
    if acknowledged < sent:
        QUEUE_ACK_NOOP_TOTAL.labels(stream).inc(sent - acknowledged)
