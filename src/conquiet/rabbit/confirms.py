"""Match confirmations with messages: the broker and the channel both number the sent messages."""

import asyncio
import time
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from conquiet.core.log import FactLogger
from conquiet.errors import ConfigurationError, PublishError, ReturnedMessageError
from conquiet.metrics import registry
from conquiet.metrics.safety import count
from conquiet.rabbit.connection import NOT_FOUND, Link, Loss
from conquiet.rabbit.properties import Properties

logger = FactLogger("conquiet.rabbit.publisher")  # one logger for publishing

_HEADER_FRAME: Final = 20  # bytes around the properties in their frame
_RENEW_S = 1.0
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded message. ``repr`` shows neither body nor properties.

    Attributes:
        exchange: Empty for the default exchange.
        routing_key: At most 255 bytes.
        body: The bytes to send.
        properties: Encoded for AMQP, beginning with their flags.
    """

    exchange: str
    routing_key: str
    body: bytes = field(repr=False)
    properties: bytes = field(repr=False)

    @property
    def message_id(self) -> str:
        """The property ``message_id``, as the broker returns it."""
        found: str = Properties(self.properties).message_id
        return found


class ConfirmChannel:
    """The unconfirmed messages of one link, by their delivery tags.

    Attributes:
        link: The connection.
        blocked: True while the broker accepts no message from the connection.
        refused: True once the broker has refused a message.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.refused = False
        self._opened_at = time.monotonic()
        self.blocked = False
        self._loop = asyncio.get_running_loop()
        self._next = 1
        self._waiting: dict[int, tuple[asyncio.Future[str], _Key]] = {}
        self._returned: set[int] = set()
        link.lost.add_done_callback(lambda _: self._fail_all())
        link.on_blocked = self._on_blocked

    @property
    def is_stale(self) -> bool:
        """True if a message was refused, a new channel may succeed, and no message waits on this one.

        If the leader of a quorum queue dies while the channel is new, all messages of the channel are refused from then
        on (RabbitMQ 3.10): the channel sends them to the dead node only. A full queue refuses as well, and a new
        channel does not help. So a channel is replaced at most once per ``_RENEW_S``.
        """
        return self.refused and not self._waiting and time.monotonic() - self._opened_at >= _RENEW_S

    async def start(self) -> None:
        """Switch the channel to confirms."""
        await self.link.confirm_publishes(self._on_confirm, self._on_return)

    def publish(self, message: Encoded) -> "asyncio.Future[str]":
        """Send a message. The returned future resolves to its id, or raises a PublishError.

        Raises:
            ConfigurationError: Its properties are too large for a frame. Nothing was sent.
        """
        frame_max = self.link.frame_max
        if frame_max and len(message.properties) + _HEADER_FRAME > frame_max:
            raise ConfigurationError(
                f"the headers of a message for {message.routing_key} are larger than the {frame_max} bytes the broker "
                "takes; put them into the body"
            )
        # Only a sent message takes a number: the broker numbers the messages that it receives.
        key = (message.message_id, message.exchange, message.routing_key)
        number, self._next = self._next, self._next + 1
        confirmation: asyncio.Future[str] = self._loop.create_future()
        self._waiting[number] = (confirmation, key)
        if not self.link.publish(message.exchange, message.routing_key, message.body, message.properties):
            self._resolve(number, "lost")
        return confirmation

    def _on_blocked(self, blocked: bool) -> None:  # noqa: FBT001 - as the link calls it
        self.blocked = blocked
        if blocked:
            logger.warning(
                "publishing blocked by the broker: it is low on memory or disk",
                unconfirmed=len(self._waiting),
            )
        else:
            logger.info("publishing unblocked by the broker", unconfirmed=len(self._waiting))

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        # A returned message has no number, and the broker returns it before it confirms it: so it is one of the first.
        # Messages with the same id, exchange and key are marked in their order.
        returned = (properties.message_id, method.exchange, method.routing_key)
        for number, (_, key) in self._waiting.items():
            if key == returned and number not in self._returned:
                self._returned.add(number)
                return

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        outcome = "confirmed" if type(method).__name__ == "Ack" else "refused"
        numbers = [method.delivery_tag]
        if method.multiple:  # the messages are in the order of their numbers
            numbers = list(takewhile(lambda number: number <= method.delivery_tag, self._waiting))
        for number in numbers:
            self._resolve(number, outcome)

    def _fail_all(self) -> None:
        for number in list(self._waiting):
            self._resolve(number, "lost")

    def _resolve(self, number: int, outcome: str) -> None:
        entry = self._waiting.pop(number, None)
        if entry is None:
            return
        confirmation, key = entry
        if number in self._returned:
            self._returned.discard(number)
            outcome = "returned" if outcome == "confirmed" else outcome
        self.refused = self.refused or outcome == "refused"
        count(registry.RABBIT_PUBLISHED_TOTAL, outcome)
        if confirmation.done():  # the caller was cancelled
            return
        message_id, exchange, routing_key = key
        if outcome == "confirmed":
            confirmation.set_result(message_id)
            return
        kind, text = _FAILURES[outcome]
        loss = self.link.lost.result() if outcome == "lost" and self.link.lost.done() else None
        why = _cause_of(loss, exchange)
        failure = kind(
            text.format(key=routing_key, why=why),
            queue=routing_key,
            reason=outcome if loss is None else loss.reason,
            message_id=message_id,
        )
        failure.__cause__ = None if loss is None else loss.error
        confirmation.set_exception(failure)
        confirmation.exception()  # marked as retrieved: in publish_many only the first failure is raised


_FAILURES: Final[dict[str, tuple[type[PublishError], str]]] = {
    "returned": (
        ReturnedMessageError,
        "no queue is bound for {key}: the message was returned; create the queue or correct the name",
    ),
    "refused": (PublishError, "the broker refused a message for {key} (its queue may be full)"),
    "lost": (
        PublishError,
        "the connection went away{why} before a message for {key} was confirmed; it may still be in the queue",
    ),
}


def _cause_of(loss: Loss | None, exchange: str) -> str:
    """Return the reason of a loss in brackets."""
    if loss is None:
        return ""
    if loss.code == NOT_FOUND:
        # One message named a missing exchange, and every unconfirmed message fails with it. The broker does not report
        # which one it was.
        doubt = f"; is there an exchange {exchange}?" if exchange else ""
        return f" ({loss.reason}: one of the messages named an exchange that does not exist{doubt})"
    if "larger than configured max size" in str(getattr(loss.error, "reply_text", "")):
        return f" ({loss.reason}: one of the messages is larger than the broker takes, see its max_message_size)"
    return f" ({loss.reason})"
