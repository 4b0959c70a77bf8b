"""The events of a consumer's connection, for callbacks of the application."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from conquiet.core.functions import is_awaited, reject_generator_function, require_arguments
from conquiet.core.log import FactLogger
from conquiet.errors import ConfigurationError

logger = FactLogger(__name__)


class EventKind(Enum):
    """Changes of a consumer's connection; the label ``event`` of ``conquiet_rabbit_connection_events_total``."""

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


Callback = Callable[[ConnectionEvent], None]


class ConnectionEvents:
    """Calls the callbacks of one consumer. If one raises, that is logged and nothing else changes."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {kind.value: [] for kind in EventKind}

    def on(self, name: str, callback: Callback) -> None:
        """Call ``callback(event)`` for every later event of this name."""
        callbacks = self._callbacks_of(name)
        if is_awaited(callback) or not callable(callback):
            raise ConfigurationError("a callback must be a plain function: the consumer calls it and does not await it")
        reject_generator_function("callback", callback)
        require_arguments("callback", callback, "event")
        callbacks.append(callback)

    def off(self, name: str, callback: Callback) -> None:
        """End a subscription of ``on``."""
        callbacks = self._callbacks_of(name)
        if callback not in callbacks:
            raise ConfigurationError("this callback is not subscribed to this event")
        callbacks.remove(callback)

    def emit(self, event: ConnectionEvent) -> None:
        """Call the callbacks."""
        for callback in tuple(self._callbacks[event.kind.value]):  # a callback may end a subscription
            try:
                callback(event)
            except Exception as error:  # noqa: BLE001 - a callback must not end the consumer
                logger.warning("event callback failed", error=type(error).__name__, event_name=event.kind.value)

    def _callbacks_of(self, name: str) -> list[Callback]:
        callbacks = self._callbacks.get(name)
        if callbacks is None:
            raise ConfigurationError(f"there is no event of that name; there are {', '.join(self._callbacks)}")
        return callbacks
