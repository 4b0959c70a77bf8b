"""What happens to a connection, for whoever wants to know."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

logger = logging.getLogger(__name__)


class EventKind(Enum):
    """The label ``event`` of ``conquiet_rabbit_connection_events_total``."""

    CONNECTED = "connected"
    LOST = "lost"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """Something happened to the connection of a queue's consumer.

    Attributes:
        kind: What.
        queue: Whose.
        attempt: With ``CONNECTED``: how many attempts there were before this one.
        reason: With ``LOST``: what went away and why.
    """

    kind: EventKind
    queue: str
    attempt: int = 0
    reason: str | None = None


class Listeners:
    """Callbacks that are told; one that raises is logged and does not stop the others."""

    __slots__ = ("_callbacks",)

    def __init__(self) -> None:
        self._callbacks: list[Callable[[ConnectionEvent], None]] = []

    def add(self, callback: Callable[[ConnectionEvent], None]) -> None:
        """Tell ``callback`` from now on."""
        self._callbacks.append(callback)

    def tell(self, event: ConnectionEvent) -> None:
        """Tell everybody."""
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception as error:  # noqa: BLE001 - a listener must not end the consumer
                logger.warning("a connection listener raised", extra={"error": type(error).__name__})
