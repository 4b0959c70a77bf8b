"""The message of an engine in the form that the inbox needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from conquiet.errors import MessageKeyError
from conquiet.redis_transport.ids import is_entry_id
from conquiet.transactional.payload_digest import json_bytes

if TYPE_CHECKING:
    from conquiet.processor.context import JobContext
    from conquiet.rabbit.delivery import Delivery
    from conquiet.runtime.message import RuntimeMessage


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of the runtime or the processor. ``repr`` does not show the payload.

    A struct, because one is built for each message, at a tenth of the cost of a frozen dataclass. It is in no reference
    cycle, so the garbage collector need not track it.

    Attributes:
        id_is_producers: The producer assigned the id, not a server, so the id alone identifies the message.
        payload_bytes: The same at each delivery of the message.
    """

    stream: str
    group: str
    id: str
    payload: Any = None
    payload_bytes: bytes = b""
    id_is_producers: bool = False

    def __repr__(self) -> str:
        return f"ReceivedMessage(stream={self.stream!r}, group={self.group!r}, id={self.id!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show what ``repr()`` shows, and no payload: a struct would give rich all of its fields."""
        return [("stream", self.stream), ("group", self.group), ("id", self.id)]

    @classmethod
    def of_job(cls, ctx: "JobContext", group: str) -> "ReceivedMessage":
        """Return the message of a ``JobContext``.

        Its key is the message's id, not the entry's: a retry is a new entry. Nor do the entry's bytes identify it: they
        contain the number of the attempt.
        """
        made_by_server = is_entry_id(ctx.id)
        identity = json_bytes([ctx.event, ctx.data]) if made_by_server else b""
        return cls(ctx.delivery.stream, group, ctx.id, ctx.data, identity, not made_by_server)

    @classmethod
    def of_message(cls, message: "RuntimeMessage", group: str) -> "ReceivedMessage":
        """Return a message of the runtime."""
        return cls(message.stream, group, message.id, message.data, message.raw)


@dataclass(frozen=True, slots=True)
class ReceivedFromRabbit:
    """A message of RabbitMQ. Its delivery is read only for what is needed."""

    source: str
    payload: Any = field(repr=False)
    delivery: "Delivery | None" = field(repr=False)
    group: str = ""
    id_is_producers: bool = True

    @classmethod
    def current(cls, message: Any, agreed: Callable[[str], str], queue: str | None) -> "ReceivedFromRabbit":
        """Return the message that is being handled.

        Args:
            message: The argument of the syncer.
            agreed: Returns the name of the delivery's queue, or raises if another was configured.
            queue: The configured name, if any.
        """
        from conquiet.rabbit.delivery import CURRENT, current_delivery  # needs the extra "rabbit"

        delivery = CURRENT.get(None)
        if delivery is None and queue is not None:  # called without a consumer, in a test
            return cls(queue, message, None)
        delivery = delivery or current_delivery()
        return cls(agreed(delivery.queue), message, delivery)

    @property
    def id(self) -> str:
        """The AMQP property ``message_id``."""
        from conquiet.rabbit.delivery import current_delivery

        found = (self.delivery or current_delivery()).message_id
        if found is None:
            raise MessageKeyError(
                "a message came without the AMQP property message_id, so the inbox cannot identify it: "
                "let its publisher set one, or give for_rabbit a key function"
            )
        return found

    @property
    def payload_bytes(self) -> bytes:
        """The body of the delivery."""
        return b"" if self.delivery is None else self.delivery.body
