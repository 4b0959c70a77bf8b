"""One delivery, and the session it must be settled on.

A syncer gets only the message. :func:`current_delivery` gives it the rest, such as the AMQP property ``message_id``.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from conquiet.core import causation
from conquiet.errors import LifecycleError
from conquiet.rabbit.death_headers import X_ACQUIRED_COUNT, delivery_count
from conquiet.rabbit.properties import Properties
from conquiet.rabbit.settle import DeliveryFacts

if TYPE_CHECKING:
    from conquiet.rabbit.link_session import Session

CURRENT: Final[ContextVar["Delivery"]] = ContextVar("conquiet_rabbit_delivery")
"""The delivery that the syncer is handling; set by the workers for each message."""


class Delivery:
    """A delivered message. ``repr`` shows neither headers nor body.

    A plain class with slots and no ``__eq__``: one is made for each message, and sets of them go by identity.

    Attributes:
        tag: Its number on its channel.
        queue: Name of the queue it was consumed from.
        redelivered: The broker's flag: perhaps delivered before.
        body: The bytes as they came.
    """

    __slots__ = ("_properties", "_raw", "body", "redelivered", "session", "tag")

    def __init__(self, session: "Session", tag: int, redelivered: bool, properties: bytes, body: bytes) -> None:  # noqa: FBT001
        self.session = session
        self.tag = tag
        self.redelivered = redelivered
        self._raw = properties
        self._properties: Properties | None = None
        self.body = body

    @property
    def headers(self) -> Any:
        """The AMQP headers, None when there are none. Any publisher may have written them: trust no shape."""
        return self._decoded.headers

    @property
    def message_id(self) -> str | None:
        """The AMQP property ``message_id``; None when the publisher gave none, or one that is not text."""
        found = self._decoded.message_id
        return found if isinstance(found, str) and found else None

    @property
    def queue(self) -> str:
        """Name of the queue it was consumed from."""
        return self.session.queue

    @property
    def raw_properties(self) -> bytes:
        """The AMQP properties as they came."""
        return self._raw

    @property
    def _decoded(self) -> Properties:
        if self._properties is None:
            self._properties = Properties(self._raw)
        return self._properties

    @property
    def facts(self) -> DeliveryFacts:
        """What the settle policy needs to know.

        Decoded again: the syncer may have changed the headers it got, which must not matter here.
        """
        headers = Properties(self._raw).headers
        counts_failures = isinstance(headers, dict) and X_ACQUIRED_COUNT in headers
        return DeliveryFacts(self.redelivered, delivery_count(headers), counts_failures)

    def __repr__(self) -> str:
        return f"Delivery(tag={self.tag}, redelivered={self.redelivered})"


def current_delivery() -> Delivery:
    """Return the delivery whose message the calling syncer is handling.

    Works in the syncer itself, in tasks it starts and in ``asyncio.to_thread``.

    Raises:
        LifecycleError: Nothing is being handled here.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise LifecycleError("no delivery is being handled here: call this from inside a syncer") from None


def cause_named_by(delivery: Delivery | None) -> tuple[str, str] | None:
    """Return queue and id of a delivery, for what its handler emits; None if its publisher gave no id."""
    message_id = None if delivery is None else delivery.message_id
    return None if delivery is None or message_id is None else (delivery.queue, message_id)


causation.add_source(lambda: cause_named_by(CURRENT.get(None)))
