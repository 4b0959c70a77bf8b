"""Open, use and close one connection with one channel, over the AMQP client library.

Only this module, ``amqp_connection``, ``frames`` and ``address`` use pika. A link is lost when its connection or
channel closes, or when the broker cancels its consumer. It reports this through ``lost`` and is never reused. A
delivery tag is valid only on the link that delivered it. So on a lost link every command does nothing and returns
False: sent on a newer channel, it would close that channel or settle another message.

See docs/decisions/0020.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pika import exceptions as amqp
from pika import spec

from conquiet.core.versions import release_of
from conquiet.errors import ConfigurationError, QueueMissingError, RabbitConnectionError
from conquiet.rabbit.address import Address
from conquiet.rabbit.amqp_connection import AmqpConnection, OnArrivals, RawProperties
from conquiet.rabbit.frames import pack_acks, pack_reject
from conquiet.rabbit.properties import Properties

REFUSED: Final = 403
NOT_FOUND: Final = 404
_SHORT_WAIT_S: Final = 0.5
_NODE_IS_DOWN: Final = "is down or inaccessible"

Send = Callable[[Any, Callable[[Any], None]], Any]
"""Sends a request on the channel that it receives, and passes the callback on that receives the reply."""


class LossKind(Enum):
    """The part of a link that was lost."""

    CONNECTION = "connection"
    CHANNEL = "channel"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Loss:
    """The reason why a link was lost.

    Attributes:
        kind: The part that was lost first.
        reason: Type of the error and the broker's reply code, never the broker's text: it may quote names and values.
        code: The broker's reply code; None if there was none.
        error: The client library's error, for ``__cause__``.
    """

    kind: LossKind
    reason: str
    code: int | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """An unsettled message, taken with :meth:`Link.fetch`. ``repr`` does not show its contents."""

    tag: int
    properties: Properties = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def headers(self) -> Any:
        """The AMQP headers; None if there are none."""
        return self.properties.headers


class Link:
    """One open connection and channel. Created by :meth:`open`; usable only in the event loop of that call.

    Attributes:
        is_open: True until the link is lost or closed.
        lost: Resolves to the reason when the link is lost.
        on_blocked: Called with True when the broker blocks the connection, with False when it unblocks it.
    """

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._connection: Any = None
        self._channel: Any = None
        self._consumer_tag: str | None = None
        self._connection_over = asyncio.Event()
        self._channel_over = asyncio.Event()
        self._on_empty: Callable[[], None] = lambda: None
        self.is_open = False
        self.lost: asyncio.Future[Loss] = self._loop.create_future()
        self.on_blocked: Callable[[bool], None] = lambda _: None

    @classmethod
    async def open(cls, address: Address, *, attempt: int = 0) -> "Link":
        """Connect and open a channel. ``attempt`` selects the node.

        Raises:
            RabbitConnectionError: No broker, login refused, or no reply in time.
        """
        link = cls(address.timeout_s)
        try:
            async with asyncio.timeout(address.timeout_s):
                await link._connect(address.parameters(attempt))
                link._channel = await link.request(lambda _, done: link._connection.channel(on_open_callback=done))
        except BaseException as error:
            link.abort()
            if isinstance(error, TimeoutError):
                raise RabbitConnectionError(
                    f"no answer from RabbitMQ at {address.shown} within {address.timeout_s} s", reason="timeout"
                ) from error
            if isinstance(error, RabbitConnectionError):
                raise RabbitConnectionError(
                    f"cannot connect to RabbitMQ at {address.shown}: {error.reason}", reason=error.reason
                ) from error.__cause__
            if isinstance(error, ConfigurationError):  # a file of the URL, which was there when the address was created
                raise RabbitConnectionError(
                    f"cannot connect to RabbitMQ at {address.shown}: {error}", reason=type(error).__name__
                ) from error
            raise
        link._channel.add_on_close_callback(link._on_channel_closed)
        link._channel.add_on_cancel_callback(link._on_cancelled_by_broker)
        link._channel.add_callback(lambda _frame: link._on_empty(), [spec.Basic.GetEmpty], one_shot=False)
        link.is_open = True
        return link

    @property
    def heartbeat_s(self) -> float:
        """The interval negotiated with the broker; 0 without heartbeats."""
        return float(self._connection.params.heartbeat or 0)

    @property
    def frame_max(self) -> int:
        """The negotiated maximum size of a frame in bytes; 0 for no limit."""
        return int(self._connection.params.frame_max or 0)

    @property
    def broker_release(self) -> tuple[int, ...]:
        """The first two numbers of the broker's version; empty if it does not report one."""
        version = (self._connection.server_properties or {}).get("version")
        return release_of(version) if isinstance(version, str) else ()

    # -------------------------------------------------------------- requests with a reply
    async def depth(self, queue: str) -> int:
        """Declare the queue passively and return its number of messages.

        Raises:
            QueueMissingError: There is no such queue. The link is lost, because the broker closes the channel.
        """
        try:
            answer = await self.request(lambda channel, done: channel.queue_declare(queue, passive=True, callback=done))
        except RabbitConnectionError as error:
            # The broker also replies 404 if the node of a queue is down. Such a queue is not missing.
            if self.refusal == NOT_FOUND and _NODE_IS_DOWN not in str(self.lost.result().error):
                raise QueueMissingError(
                    f"queue {queue} does not exist; create it first, conquiet never does", queue=queue
                ) from error.__cause__
            raise
        return int(answer.method.message_count)

    async def request(self, send: Send) -> Any:
        """Call ``send``, and wait for the reply or for the loss of the link. Return the reply."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def answered(frame: Any) -> None:
            if not answer.done():
                answer.set_result(frame)

        try:
            if not self.lost.done():
                send(self._channel, answered)
            async with asyncio.timeout(self._timeout_s):
                await asyncio.wait((answer, self.lost), return_when=asyncio.FIRST_COMPLETED)
        except amqp.AMQPError as error:
            raise RabbitConnectionError("the connection to RabbitMQ is gone", reason=_reason(error)) from error
        except TimeoutError as error:
            raise RabbitConnectionError(
                f"no answer from RabbitMQ within {self._timeout_s} s", reason="timeout"
            ) from error
        if not answer.done():
            self._raise_if_lost()
        return answer.result()

    @property
    def refusal(self) -> int | None:
        """The reply code with which the broker closed the channel or the connection; None if there was none."""
        return self.lost.result().code if self.lost.done() else None

    async def consume(self, queue: str, *, tag: str, prefetch: int, on_arrivals: OnArrivals) -> None:
        """Consume with manual acknowledgement and at most ``prefetch`` unsettled deliveries. Call it once per link.

        ``on_arrivals`` receives the deliveries of each read from the socket together.
        """
        self._connection.take_deliveries(self._channel.channel_number, on_arrivals)
        await self.widen(queue, tag=tag, prefetch=prefetch)

    async def widen(self, queue: str, *, tag: str, prefetch: int) -> None:
        """Consume again after :meth:`cancel`, with another prefetch."""
        # global_qos=False: the limit applies to this consumer. RabbitMQ 4 has removed the limit per channel.
        await self.request(
            lambda channel, done: channel.basic_qos(prefetch_count=prefetch, global_qos=False, callback=done)
        )
        self._consumer_tag = tag
        await self.request(
            lambda channel, done: channel.basic_consume(
                queue, no_delivery, auto_ack=False, consumer_tag=tag, callback=done
            )
        )

    async def fetch(self, queue: str) -> Fetched | None:
        """Take one message from a queue without settling it; None if the queue is empty. One call at a time."""

        def send(channel: Any, done: Callable[[Any], None]) -> None:
            self._on_empty = lambda: done(None)
            channel.basic_get(
                queue, lambda _channel, method, properties, body: done(Fetched(method.delivery_tag, properties, body))
            )

        answer: Fetched | None = await self.request(send)
        return answer

    async def cancel(self) -> None:
        """End the deliveries. Delivered messages can still be settled."""
        tag, self._consumer_tag = self._consumer_tag, None
        if tag is not None and self.is_open:
            await self.request(lambda channel, done: channel.basic_cancel(tag, callback=done))

    async def channel_close_reason(self, send: Send) -> str:
        """Send a request on a new channel. Return the broker's text if it closed that channel; else an empty text."""
        channel = await self.request(lambda _, done: self._connection.channel(on_open_callback=done))

        def ask(_: Any, done: Callable[[Any], None]) -> None:
            channel.add_on_close_callback(lambda _channel, error: done(error))
            send(channel, done)

        try:
            answer = await self.request(ask)
        finally:
            if channel.is_open:
                channel.close()
        return str(getattr(answer, "reply_text", ""))

    async def confirm_publishes(self, on_confirm: Callable[[Any], None], on_return: Callable[..., None]) -> None:
        """Switch the channel to publisher confirms."""
        self._channel.add_on_return_callback(on_return)
        await self.request(lambda channel, done: channel.confirm_delivery(on_confirm, callback=done))

    # -------------------------------------------------------------- commands without a reply
    def ack(self, *, up_to: int | None = None, singles: tuple[int, ...] = ()) -> bool:
        """Acknowledge all unsettled deliveries up to a tag, then single tags above it, in one write.

        Return False if the link is lost: the broker has requeued the messages.
        """
        if self.is_open:
            frames = pack_acks(self._channel.channel_number, up_to, singles)
            self._connection.emit(frames, len(singles) + (up_to is not None))
        return self.is_open

    def reject(self, tag: int, *, requeue: bool) -> bool:
        """Reject a message. From RabbitMQ 4.3 on, this (not a nack) counts toward a quorum queue's delivery limit."""
        if self.is_open:
            self._connection.emit(pack_reject(self._channel.channel_number, tag, requeue=requeue), 1)
        return self.is_open

    def nack_requeue(self, tag: int) -> bool:
        """Return an untried message to the queue. Newer quorum queues do not count a nack as a failed attempt."""
        return self._order(lambda: self._channel.basic_nack(tag, multiple=False, requeue=True))

    def publish(self, exchange: str, routing_key: str, body: bytes, properties: bytes) -> bool:
        """Send a mandatory message with encoded properties. ``on_confirm`` receives its confirmation."""
        encoded = RawProperties(properties)
        return self._order(lambda: self._channel.basic_publish(exchange, routing_key, body, encoded, mandatory=True))

    async def close_channel(self) -> None:
        """Close the channel. The broker's reply proves that it has received every disposition sent before."""
        self.is_open = False
        if self._channel is not None and self._channel.is_open:
            self._channel.close()
            await self._wait(self._channel_over, self._timeout_s)

    async def close(self) -> None:
        """Close channel and connection. Never raises, and waits at most twice the timeout."""
        try:
            await self.close_channel()
        finally:  # on a cancellation too: the connection would stay open, and its deliveries unsettled
            self.abort()
        await self._wait(self._connection_over, self._timeout_s)

    def abort(self) -> None:
        """Begin to close the connection, in any state. The broker requeues unsettled messages."""
        self.is_open = False
        if self._connection is None or self._connection.is_closed:
            self._connection_over.set()
        elif not self._connection.is_closing:
            self._connection.close()

    def drop(self) -> None:
        """End the connection without waiting for the broker. Every wait for a reply ends."""
        error = amqp.StreamLostError("dropped by a forced stop")
        self._lose(LossKind.CONNECTION, error)
        if self._connection is not None and not self._connection.is_closed:
            self._connection.drop(error)

    def mark_lost(self, error: BaseException) -> None:
        """Treat the link as lost, because a request got no reply: it is unknown whether the broker carried it out."""
        self._lose(LossKind.CONNECTION, error)
        self.abort()

    async def close_soon(self) -> None:
        """Close a link that is lost or gets no replies, and wait only briefly.

        A restarting broker may keep a channel open for a long time. The next attempt must not wait for it.
        """
        self.abort()
        await self._wait(self._connection_over, _SHORT_WAIT_S)

    # -------------------------------------------------------------- inside
    async def _connect(self, parameters: Any) -> None:
        opened: asyncio.Future[Any] = self._loop.create_future()
        self._connection = AmqpConnection(
            parameters,
            on_open_callback=opened.set_result,
            on_open_error_callback=self._on_connection_closed,
            on_close_callback=self._on_connection_closed,
        )
        self._connection.add_on_connection_blocked_callback(lambda *_: self.on_blocked(True))  # noqa: FBT003
        self._connection.add_on_connection_unblocked_callback(lambda *_: self.on_blocked(False))  # noqa: FBT003
        try:
            await self._connection.connect()
        except OSError as error:
            raise RabbitConnectionError("cannot connect to RabbitMQ", reason=_reason(error)) from error
        await asyncio.wait((opened, self.lost), return_when=asyncio.FIRST_COMPLETED)
        self._raise_if_lost()

    def _raise_if_lost(self) -> None:
        if self.lost.done():
            loss = self.lost.result()
            raise RabbitConnectionError("the connection to RabbitMQ was lost", reason=loss.reason) from loss.error

    def _order(self, send: Callable[[], object]) -> bool:
        if not self.is_open:
            return False
        try:
            send()
        except amqp.AMQPError as error:  # the channel is closing, and the callback has not run yet
            self._lose(LossKind.CHANNEL, error)
            return False
        except BaseException as error:  # part of it may be sent, so later confirmations could be matched wrongly
            self._lose(LossKind.CHANNEL, error)
            self.abort()
            raise
        return True

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        # A broker that hangs must not block the caller. The heartbeat ends a connection that stays open.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def _lose(self, kind: LossKind, error: BaseException | None) -> None:
        self.is_open = False
        if not self.lost.done():
            code = getattr(error, "reply_code", None)
            self.lost.set_result(Loss(kind, _reason(error), code if isinstance(code, int) else None, error))

    def _on_connection_closed(self, _connection: Any, error: BaseException) -> None:
        self._connection_over.set()
        self._channel_over.set()
        self._lose(LossKind.CONNECTION, error)

    def _on_channel_closed(self, _channel: Any, error: BaseException) -> None:
        self._channel_over.set()
        # When a connection ends, the callbacks of its channels run first.
        ended = isinstance(error, amqp.AMQPConnectionError)
        self._lose(LossKind.CONNECTION if ended else LossKind.CHANNEL, error)

    def _on_cancelled_by_broker(self, _frame: Any) -> None:
        # The queue was deleted, or its node went down. The channel stays open, but would get no more deliveries.
        self._consumer_tag = None
        self._lose(LossKind.CONSUMER, None)


def no_delivery(*_: object) -> None:
    """Do nothing: pika requires this callback, but receives no delivery."""


def _reason(error: Any) -> str:
    """Return the type of an error and the broker's reply code."""
    if error is None:
        return "cancelled by the broker"
    code = getattr(error, "reply_code", None)
    return type(error).__name__ + (f" ({code})" if isinstance(code, int) else "")
