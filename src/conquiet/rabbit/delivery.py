"""Represent one delivery, with the session on which it must be settled.

A syncer receives only the message. :func:`current_delivery` returns the rest, such as the AMQP property ``message_id``.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from conquiet.core import causation
from conquiet.errors import LifecycleError
from conquiet.rabbit.death_headers import X_ACQUIRED_COUNT, delivery_count
from conquiet.rabbit.properties import Properties
from conquiet.rabbit.settle import FIRST_DELIVERY, DeliveryFacts

if TYPE_CHECKING:
    from conquiet.rabbit.link_session import LinkSession

CURRENT: Final[ContextVar["Delivery"]] = ContextVar("conquiet_rabbit_delivery")
"""The delivery that the syncer is handling. The workers set it for each message."""


class Delivery:
    """A delivered message. ``repr`` shows neither headers nor body.

    A plain class with slots and no ``__eq__``: one object is created for each message, and sets compare by identity.

    Attributes:
        tag: The delivery tag on its channel.
        queue: Name of the queue it was consumed from.
        redelivered: The broker's flag: perhaps delivered before.
        raw_properties: The AMQP properties as received.
        body: The bytes as received.
    """

    __slots__ = ("_properties", "body", "raw_properties", "redelivered", "session", "tag")

    def __init__(self, session: "LinkSession", tag: int, redelivered: bool, properties: bytes, body: bytes) -> None:  # noqa: FBT001
        self.session = session
        self.tag = tag
        self.redelivered = redelivered
        self.raw_properties = properties
        self._properties: Properties | None = None
        self.body = body

    @property
    def headers(self) -> Any:
        """The AMQP headers; None without any. A publisher may have written any value: check types."""
        return self._decoded.headers

    @property
    def message_id(self) -> str | None:
        """The AMQP property ``message_id``; None if it is missing, empty or not text."""
        found = self._decoded.message_id
        return found if isinstance(found, str) and found else None

    @property
    def queue(self) -> str:
        """Name of the queue it was consumed from."""
        return self.session.queue

    @property
    def _decoded(self) -> Properties:
        if self._properties is None:
            self._properties = Properties(self.raw_properties)
        return self._properties

    @property
    def facts(self) -> DeliveryFacts:
        """The facts that the settle policy needs.

        Counts are read from a redelivery only: at a first delivery, a publisher or another queue has written them. The
        headers are decoded again, because the syncer may have changed the decoded ones.
        """
        if not self.redelivered:
            return FIRST_DELIVERY
        headers = Properties(self.raw_properties).headers
        counts_failures = isinstance(headers, dict) and X_ACQUIRED_COUNT in headers
        return DeliveryFacts(redelivered=True, delivery_count=delivery_count(headers), counts_failures=counts_failures)

    def __repr__(self) -> str:
        return f"Delivery(tag={self.tag}, redelivered={self.redelivered})"


def current_delivery() -> Delivery:
    """Return the delivery of the message that the calling syncer is handling.

    Works in the syncer, in tasks that it starts and in ``asyncio.to_thread``.

    Raises:
        LifecycleError: No message is being handled here.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise LifecycleError("no delivery is being handled here: call this from inside a syncer") from None


def cause_named_by(delivery: Delivery | None) -> tuple[str, str] | None:
    """Return queue and id of a delivery, as the cause of emitted messages; None if its publisher set no id."""
    message_id = None if delivery is None else delivery.message_id
    return None if delivery is None or message_id is None else (delivery.queue, message_id)


causation.add_source(lambda: cause_named_by(CURRENT.get(None)))
