"""One delivery: what the broker gave us, and the session it has to be settled on.

A syncer gets the message alone. One that wants to know more, such as the AMQP property ``message_id``, asks
:func:`current_delivery` while it runs.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from conquiet.errors import LifecycleError
from conquiet.rabbit.intake import X_ACQUIRED_COUNT, delivery_count
from conquiet.rabbit.properties import Properties
from conquiet.rabbit.settle import Facts

if TYPE_CHECKING:
    from conquiet.rabbit.session import Session

CURRENT: Final[ContextVar["Delivery"]] = ContextVar("conquiet_rabbit_delivery")
"""What the syncer of this task or thread is handling; set by the workers."""


class Delivery:
    """A message on its way. ``repr`` shows neither headers nor body.

    A plain class with slots and no ``__eq__``: one is made for each message, and sets of them go by identity.

    Attributes:
        tag: Its number on its channel.
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
        """The AMQP headers, None when there are none. Anybody may have written them: trust no shape."""
        return self._decoded.headers

    @property
    def message_id(self) -> str | None:
        """The AMQP property ``message_id``; None when the publisher gave none, or one that is not text."""
        found = self._decoded.message_id
        return found if isinstance(found, str) and found else None

    @property
    def _decoded(self) -> Properties:
        if self._properties is None:
            self._properties = Properties(self._raw)
        return self._properties

    @property
    def facts(self) -> Facts:
        """What the settle policy needs to know.

        Decoded anew: the syncer may have changed the headers it was shown, and has no say in this.
        """
        headers = Properties(self._raw).headers
        counts_failures = isinstance(headers, dict) and X_ACQUIRED_COUNT in headers
        return Facts(self.redelivered, delivery_count(headers), counts_failures)

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
