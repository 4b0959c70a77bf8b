"""Connection events, and the callbacks that receive them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from conquiet.core.log import FactLogger

logger = FactLogger(__name__)


class EventKind(Enum):
    """The label ``event`` of ``conquiet_rabbit_connection_events_total``."""

    CONNECTED = "connected"
    LOST = "lost"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A change of a consumer's connection.

    Attributes:
        kind: The change.
        queue: The consumed queue.
        attempt: With ``CONNECTED``: number of attempts before this one.
        reason: With ``LOST``: connection, channel or consumer, and the reason of the loss.
    """

    kind: EventKind
    queue: str
    attempt: int = 0
    reason: str | None = None


class Listeners:
    """Callbacks of the application. If one raises, this is logged, and the others still run."""

    __slots__ = ("_callbacks",)

    def __init__(self) -> None:
        self._callbacks: list[Callable[[ConnectionEvent], None]] = []

    def add(self, callback: Callable[[ConnectionEvent], None]) -> None:
        """Call ``callback`` with every event from now on."""
        self._callbacks.append(callback)

    def notify(self, event: ConnectionEvent) -> None:
        """Call every callback."""
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception as error:  # noqa: BLE001 - a listener must not end the consumer
                logger.warning("a connection listener raised", error=type(error).__name__)
