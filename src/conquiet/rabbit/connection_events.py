"""The events of a consumer's connection, for callbacks of the application."""

from dataclasses import dataclass
from enum import Enum


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
