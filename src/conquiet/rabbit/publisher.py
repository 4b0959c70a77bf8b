"""Publishing that is confirmed: ``publish`` returns when the broker has the message, and raises when it has not.

Messages are persistent and mandatory. A message that no queue is bound for comes back and raises, instead of
vanishing. After a lost connection nobody knows what became of the unconfirmed ones: that is an error too, never a
silent second attempt.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from conquiet.errors import ConfigurationError, PublishError, ReturnedMessageError
from conquiet.kernel.validation import require_positive
from conquiet.metrics import registry
from conquiet.rabbit.address import Address, as_urls
from conquiet.rabbit.connection import NOT_FOUND, Link, Loss
from conquiet.rabbit.properties import PERSISTENT, Properties, UnencodableError, encode_properties
from conquiet.rabbit.tables import pack_short

logger = logging.getLogger(__name__)

_HEADER_FRAME: Final = 20  # what is around the properties in their frame
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish. ``repr`` shows neither body nor headers.

    Attributes:
        routing_key: With the default exchange: the name of the queue.
        body: Bytes, sent as they are, or anything that can be JSON.
        exchange: The default exchange delivers to the queue of the routing key's name.
        headers: AMQP headers.
        message_id: Made up when missing.
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


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as it is sent. ``repr`` shows neither body nor properties.

    Attributes:
        exchange: As in :class:`Outgoing`.
        routing_key: As in :class:`Outgoing`.
        body: As in :class:`Outgoing`, but bytes.
        properties: As AMQP has them, from their flags on.
    """

    exchange: str
    routing_key: str
    body: bytes = field(repr=False)
    properties: bytes = field(repr=False)

    @property
    def message_id(self) -> str:
        """The property of that name, as the broker gives it back."""
        found: str = Properties(self.properties).message_id
        return found


class Publisher:
    """Publishes with confirms on a connection of its own, opened at the first message.

    A lost connection is reported to whoever was publishing; the next call opens a new one. A broker low on memory or
    disk blocks those who publish: the calls wait (for ``timeout_s`` at most), the log and :attr:`is_blocked` say so.

    Args:
        url: As for ``RabbitConsumer``.
        window: How many messages may be unconfirmed at a time in :meth:`publish_many`.
        timeout_s: Longest wait for a connection, and for a confirmation.
        ssl_context: For ``amqps``.
    """

    def __init__(
        self, url: str | Sequence[str], *, window: int = 500, timeout_s: float = 30.0, ssl_context: Any = None
    ) -> None:
        self._window = require_positive("window", window)
        self._timeout_s = timeout_s
        self._address = Address(as_urls(url), ssl_context=ssl_context, timeout_s=timeout_s, name="conquiet.publisher")
        self._channel: _ConfirmChannel | None = None
        self._opening = asyncio.Lock()
        self._attempts = 0

    @property
    def is_blocked(self) -> bool:
        """Whether the broker has said that it takes nothing from this connection for now."""
        return self._channel is not None and self._channel.blocked

    async def publish(
        self, routing_key: str, body: Any, *, exchange: str = "", headers: Mapping[str, Any] | None = None
    ) -> str:
        """Publish one message and return its id once the broker has taken responsibility for it.

        Raises:
            ConfigurationError: It holds what AMQP (or JSON) cannot. Nothing was sent.
            ReturnedMessageError: No queue is bound for it.
            PublishError: Not confirmed.
        """
        return await self.send(Outgoing(routing_key, body, exchange=exchange, headers=headers))

    async def send(self, message: Outgoing) -> str:
        """Publish one message with all its properties; see :meth:`publish`.

        Raises:
            ConfigurationError: It holds what AMQP (or JSON) cannot. Nothing was sent.
            ReturnedMessageError: No queue is bound for it.
            PublishError: Not confirmed.
        """
        return await self.send_encoded(encode(message))

    async def send_encoded(self, message: Encoded) -> str:
        """Publish one message whose properties are bytes already; see :meth:`publish`."""
        confirmation = (await self._open()).publish(message)
        return await self._confirmed(confirmation, message.routing_key)

    async def publish_many(
        self,
        messages: Iterable[Outgoing] | AsyncIterable[Outgoing],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Publish many, at most ``window`` unconfirmed at a time, and return how many were confirmed: all of them.

        Raises:
            ReturnedMessageError: No queue is bound for one of them; those before it are confirmed.
            PublishError: One was not confirmed. Later ones that were sent already may be in their queues.
            ConfigurationError: One holds what AMQP (or JSON) cannot; those before it are confirmed.
            Exception: What ``messages`` itself raised. Those before it are confirmed, and ``progress`` was told so.
        """
        channel = await self._open()
        waiting: deque[tuple[asyncio.Future[str], str]] = deque()
        confirmed = 0
        try:
            async for message in _each(messages):
                waiting.append((channel.publish(encode(message)), message.routing_key))
                if len(waiting) >= self._window:
                    # Half of the window at a time: confirmations come in multiples, and so should we.
                    confirmed += await self._confirm_down_to(self._window // 2, waiting)
                    if progress is not None:
                        progress(confirmed)
            confirmed += await self._confirm_down_to(0, waiting)
        except PublishError:
            raise
        except Exception:
            confirmed += await self._confirm_down_to(0, waiting)
            if progress is not None:
                progress(confirmed)
            raise
        finally:
            for confirmation, _ in waiting:
                confirmation.cancel()
        if progress is not None:
            progress(confirmed)
        return confirmed

    async def close(self) -> None:
        """Close the connection, if there is one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Publisher({self._address.shown})"

    async def _open(self) -> "_ConfirmChannel":
        async with self._opening:
            if self._channel is not None and self._channel.link.is_open:
                return self._channel
            if self._channel is not None:
                over, self._channel = self._channel, None
                await over.link.give_up()  # only its channel may be gone: the connection would stay for ever
            attempt, self._attempts = self._attempts, self._attempts + 1
            link = await Link.open(self._address, attempt=attempt)
            try:
                channel = _ConfirmChannel(link)
                await channel.start()
            except BaseException:
                await link.give_up()  # half open: nothing that is sent on it would ever be confirmed
                raise
            self._channel = channel
            return channel

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
                "it may be in the queue all the same",
                queue=routing_key,
                reason=reason,
            ) from error


class _ConfirmChannel:
    """The unconfirmed messages of one link, by the numbers the broker counts them with."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.blocked = False
        self._loop = asyncio.get_running_loop()
        self._next = 1
        self._lowest = 1
        self._waiting: dict[int, tuple[asyncio.Future[str], _Key]] = {}
        # A returned message comes back without its number. Whoever shares id, exchange and key shares its fate.
        self._by_key: dict[_Key, deque[int]] = defaultdict(deque)
        self._returned: set[int] = set()
        link.lost.add_done_callback(lambda _: self._fail_all())
        link.on_blocked = self._on_blocked

    async def start(self) -> None:
        await self.link.confirm_publishes(self._on_confirm, self._on_return)

    def publish(self, message: Encoded) -> "asyncio.Future[str]":
        frame_max = self.link.frame_max
        if frame_max and len(message.properties) + _HEADER_FRAME > frame_max:
            raise ConfigurationError(
                f"the headers of a message for {message.routing_key} are larger than the {frame_max} bytes the broker "
                "takes; put them into the body"
            )
        # Numbers are taken by what is sent, and by nothing else: the broker counts along.
        key = (message.message_id, message.exchange, message.routing_key)
        number, self._next = self._next, self._next + 1
        confirmation: asyncio.Future[str] = self._loop.create_future()
        self._waiting[number] = (confirmation, key)
        self._by_key[key].append(number)
        if not self.link.publish(
            message.exchange, message.routing_key, message.body, message.properties, mandatory=True
        ):
            self._resolve(number, "lost")
        return confirmation

    def _on_blocked(self, blocked: bool) -> None:  # noqa: FBT001 - as the link calls it
        self.blocked = blocked
        if blocked:
            logger.warning(
                "publishing blocked by the broker: it is low on memory or disk",
                extra={"unconfirmed": len(self._waiting)},
            )
        else:
            logger.info("publishing unblocked by the broker", extra={"unconfirmed": len(self._waiting)})

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        # The broker returns a message before it confirms it.
        numbers = self._by_key.get((properties.message_id, method.exchange, method.routing_key), deque())
        for number in numbers:
            if number not in self._returned:
                self._returned.add(number)
                return

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        outcome = "confirmed" if type(method).__name__ == "Ack" else "refused"
        first = self._lowest if method.multiple else method.delivery_tag
        for number in range(first, method.delivery_tag + 1):
            self._resolve(number, outcome)
        if method.multiple:
            self._lowest = method.delivery_tag + 1

    def _fail_all(self) -> None:
        for number in list(self._waiting):
            self._resolve(number, "lost")

    def _resolve(self, number: int, outcome: str) -> None:
        entry = self._waiting.pop(number, None)
        if entry is None:
            return
        confirmation, key = entry
        self._forget(key, number)
        if number in self._returned:
            self._returned.discard(number)
            outcome = "returned" if outcome == "confirmed" else outcome
        registry.RABBIT_PUBLISHED_TOTAL.labels(outcome).inc()
        if confirmation.done():  # nobody waits any more
            return
        message_id, exchange, routing_key = key
        if outcome == "confirmed":
            confirmation.set_result(message_id)
            return
        kind, text = _FAILURES[outcome]
        loss = self.link.lost.result() if outcome == "lost" and self.link.lost.done() else None
        why = _told(loss, exchange)
        failure = kind(
            text.format(key=routing_key, why=why),
            queue=routing_key,
            reason=outcome if loss is None else loss.reason,
            message_id=message_id,
        )
        failure.__cause__ = None if loss is None else loss.error
        confirmation.set_exception(failure)
        confirmation.exception()  # marked as seen: in publish_many only the first failure is raised

    def _forget(self, key: _Key, number: int) -> None:
        numbers = self._by_key[key]
        numbers.remove(number)
        if not numbers:
            del self._by_key[key]


_FAILURES: Final[dict[str, tuple[type[PublishError], str]]] = {
    "returned": (
        ReturnedMessageError,
        "no queue is bound for {key}: the message was returned; create the queue or correct the name",
    ),
    "refused": (PublishError, "the broker refused a message for {key} (its queue may be full)"),
    "lost": (
        PublishError,
        "the connection went away{why} before a message for {key} was confirmed; it may be in the queue all the same",
    ),
}


def _told(loss: Loss | None, exchange: str) -> str:
    """Say in brackets why a link was lost."""
    if loss is None:
        return ""
    if loss.code == NOT_FOUND:
        # All that were on their way fail with one that names an exchange there is not; which one is not told.
        doubt = f"; is there an exchange {exchange}?" if exchange else ""
        return f" ({loss.reason}: one of the messages named an exchange that does not exist{doubt})"
    return f" ({loss.reason})"


def encode(message: Outgoing) -> Encoded:
    """Turn a message into what is sent.

    Raises:
        ConfigurationError: It holds what AMQP (or JSON) cannot. The text quotes no value.
    """
    if not (_is_short_text(message.exchange) and _is_short_text(message.routing_key)):
        raise ConfigurationError("exchange and routing key of a message are texts of at most 255 bytes")
    body, content_type = message.body, message.content_type
    if not isinstance(body, bytes):
        try:
            body = msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"the body of a message for {message.routing_key} is neither bytes nor something JSON can hold"
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
