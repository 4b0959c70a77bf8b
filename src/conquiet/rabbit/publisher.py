"""Publish with confirms: ``publish`` returns when the broker has confirmed the message, and raises otherwise.

Messages are persistent and mandatory: the broker returns a message that no queue is bound for, and ``publish`` raises.
After a lost connection it is unknown whether unconfirmed messages arrived. That raises too; nothing is retried
silently.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self
from uuid import uuid4

from conquiet.core import tracing
from conquiet.core.json_codec import CodecError, encode_json
from conquiet.core.validation import require_positive
from conquiet.errors import ConfigurationError, PublishError
from conquiet.rabbit.address import Address, as_urls
from conquiet.rabbit.any_node import open_on_any_node
from conquiet.rabbit.confirms import ConfirmChannel, Encoded
from conquiet.rabbit.properties import PERSISTENT, UnencodableError, encode_properties
from conquiet.rabbit.tables import pack_short

_WINDOW_BYTES: Final = 16 * 1_048_576


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish. ``repr`` shows neither body nor headers.

    Attributes:
        routing_key: With the default exchange: the name of the queue.
        body: Bytes, sent unchanged, or a JSON value; see ``core.json_codec`` for the accepted types.
        exchange: Empty for the default exchange, which delivers to the queue named by the routing key.
        headers: AMQP headers.
        message_id: Generated if missing.
        content_type: ``application/json`` unless the body is bytes.
        properties: Further AMQP properties by pika's names, such as ``expiration`` or ``correlation_id``.
    """

    routing_key: str
    body: Any = field(repr=False)
    exchange: str = ""
    headers: Mapping[str, Any] | None = field(default=None, repr=False)
    message_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Publisher:
    """Publishes with confirms on a separate connection, opened at the first message.

    If the connection is lost, waiting calls raise, and the next call opens a new one. A broker low on memory or disk
    blocks publishers: calls wait for at most ``timeout_s``, and the log and :attr:`is_blocked` report it.

    Args:
        url: As for ``RabbitConsumer``.
        window: Maximum number of unconfirmed messages in :meth:`publish_many`.
        timeout_s: Longest wait for a connection, and for a confirmation.
        ssl_context: For ``amqps``.
    """

    def __init__(
        self, url: str | Sequence[str], *, window: int = 500, timeout_s: float = 30.0, ssl_context: Any = None
    ) -> None:
        self._window = require_positive("window", window)
        self._timeout_s = timeout_s
        self._address = Address(as_urls(url), ssl_context=ssl_context, timeout_s=timeout_s, name="conquiet.publisher")
        self._channel: ConfirmChannel | None = None
        self._opening = asyncio.Lock()
        self._attempts = 0
        self._closed = False

    @property
    def is_blocked(self) -> bool:
        """True while the broker accepts no message from this connection."""
        return self._channel is not None and self._channel.blocked

    async def publish(
        self,
        routing_key: str,
        body: Any,
        *,
        exchange: str = "",
        headers: Mapping[str, Any] | None = None,
        content_type: str | None = None,
    ) -> str:
        """Publish one message and return its id when the broker has confirmed it.

        Args:
            routing_key: With the default exchange: the name of the queue.
            body: Bytes, or a JSON value.
            exchange: The exchange to publish to.
            headers: AMQP headers.
            content_type: ``application/json`` by default for a body that is not bytes. The Node original reads such a
                message as an object and cannot handle it: pass ``text/plain`` if it consumes the queue too.

        Raises:
            ConfigurationError: AMQP or JSON cannot encode the message. Nothing was sent.
            ReturnedMessageError: No queue is bound for it.
            PublishError: Not confirmed.
        """
        message = Outgoing(routing_key, body, exchange=exchange, headers=headers, content_type=content_type)
        if tracing.active is None:
            return await self.send(message)
        message_id = uuid4().hex
        with tracing.active.send("rabbitmq", exchange or routing_key, message_id=message_id) as span:
            return await self.send(replace(message, headers={**(headers or {}), **span.headers}, message_id=message_id))

    async def send(self, message: Outgoing) -> str:
        """Publish one message with all its properties; see :meth:`publish`.

        Raises:
            ConfigurationError: AMQP or JSON cannot encode the message. Nothing was sent.
            ReturnedMessageError: No queue is bound for it.
            PublishError: Not confirmed.
        """
        return await self.send_encoded(encode(message))

    async def send_encoded(self, message: Encoded) -> str:
        """Publish one encoded message; see :meth:`publish`."""
        confirmation = (await self._open()).publish(message)
        return await self._confirmed(confirmation, message.routing_key)

    async def publish_many(
        self,
        messages: Iterable[Outgoing] | AsyncIterable[Outgoing],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Publish messages, at most ``window`` unconfirmed at a time. Return their number when all are confirmed.

        The window is smaller for large messages, because they are held in memory until they are sent.

        Raises:
            ReturnedMessageError: No queue is bound for one message. All messages before it are confirmed.
            PublishError: One message was not confirmed. Later messages may have been sent and be in their queues.
            ConfigurationError: AMQP or JSON cannot encode one message. All messages before it are confirmed.
            Exception: ``messages`` raised it. All messages before it are confirmed, and ``on_progress`` was called.
        """
        report = on_progress or (lambda _confirmed: None)
        channel = await self._open()
        waiting: deque[tuple[asyncio.Future[str], str]] = deque()
        confirmed = in_memory = 0
        try:
            async for message in _each(messages):
                encoded = encode(message)
                waiting.append((channel.publish(encoded), message.routing_key))
                in_memory += len(encoded.body)
                if len(waiting) >= self._window or in_memory >= _WINDOW_BYTES:
                    # Wait for half of the window: one confirmation often covers several messages.
                    left = self._window // 2 if in_memory < _WINDOW_BYTES else 0
                    confirmed += await self._confirm_down_to(left, waiting)
                    in_memory = 0
                    report(confirmed)
            confirmed += await self._confirm_down_to(0, waiting)
        except PublishError:
            raise
        except Exception:
            confirmed += await self._confirm_down_to(0, waiting)
            report(confirmed)
            raise
        finally:
            for confirmation, _ in waiting:
                confirmation.cancel()
        report(confirmed)
        return confirmed

    async def close(self) -> None:
        """Close the connection, if there is one. Calls that wait for a confirmation raise, and so do later calls."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.link.close()

    def drop(self) -> None:
        """End the connection without waiting for the broker. Calls that wait for a confirmation raise."""
        if self._channel is not None:
            self._channel.link.drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Publisher({self._address.shown})"

    async def _open(self) -> ConfirmChannel:
        async with self._opening:
            if self._channel is not None and self._channel.link.is_open and not self._channel.is_stale:
                return self._channel
            if self._channel is not None:
                over, self._channel = self._channel, None
                await over.link.close_soon()  # if only the channel is closed, the connection would stay open
            attempt, self._attempts = self._attempts, self._attempts + 1
            self._require_open()
            link = await open_on_any_node(self._address, first=attempt)
            try:
                channel = ConfirmChannel(link)
                await channel.start()
                self._require_open()  # closed meanwhile: this connection would stay open
            except BaseException:
                await link.close_soon()  # half open: no message sent on it would ever be confirmed
                raise
            self._channel = channel
            return channel

    def _require_open(self) -> None:
        if self._closed:
            raise PublishError("this Publisher is closed: nothing was sent; create a new one", reason="closed")

    async def _confirm_down_to(self, left: int, waiting: "deque[tuple[asyncio.Future[str], str]]") -> int:
        confirmed = 0
        while len(waiting) > left:
            await self._confirmed(*waiting.popleft())
            confirmed += 1
        return confirmed

    async def _confirmed(self, confirmation: "asyncio.Future[str]", routing_key: str) -> str:
        if confirmation.done():
            return confirmation.result()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await confirmation
        except TimeoutError as error:
            reason, why = "timeout", ""
            if self.is_blocked:
                reason, why = "blocked", "blocks publishers (it is low on memory or disk) and "
            raise PublishError(
                f"the broker {why}did not confirm a message for {routing_key} within {self._timeout_s} s; "
                "it may still be in the queue",
                queue=routing_key,
                reason=reason,
            ) from error


def encode(message: Outgoing) -> Encoded:
    """Return the encoded message.

    Raises:
        ConfigurationError: AMQP or JSON cannot encode the message. The text quotes no value.
    """
    if not (_is_short_text(message.exchange) and _is_short_text(message.routing_key)):
        raise ConfigurationError("exchange and routing key of a message are texts of at most 255 bytes")
    body, content_type = message.body, message.content_type
    if isinstance(body, bytearray | memoryview):
        body = bytes(body)
    elif not isinstance(body, bytes):
        try:
            body = encode_json(body)
        except CodecError as error:
            raise ConfigurationError(
                f"the body of a message for {message.routing_key} is neither bytes nor something JSON can hold: "
                f"{error.explanation}"
            ) from error
        content_type = content_type or "application/json"
    properties = {
        "content_type": content_type,
        "headers": message.headers,
        "delivery_mode": PERSISTENT,
        "message_id": message.message_id or uuid4().hex,
        **message.properties,
    }
    try:
        encoded = encode_properties(properties)
    except UnencodableError as error:
        raise ConfigurationError(f"a message for {message.routing_key} cannot be sent: {error}") from None
    return Encoded(message.exchange, message.routing_key, body, encoded)


def _is_short_text(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(pack_short(value))
    except ValueError:
        return False


async def _each(messages: Iterable[Outgoing] | AsyncIterable[Outgoing]) -> AsyncIterable[Outgoing]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
