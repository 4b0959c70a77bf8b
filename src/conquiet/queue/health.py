"""Health of a queue consumer. Pure."""

from dataclasses import dataclass
from enum import Enum


class QueueStatus(Enum):
    """Status of a consumer. The value is the reason why it is not ready."""

    NOT_STARTED = "not started"
    RUNNING = ""
    PAUSED = "paused: a server that the handler needs is unavailable"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """Health of a ``QueueConsumer`` or ``QueueWorker`` at one moment, without a command to the server.

    Attributes:
        status: Its status.
    """

    status: QueueStatus

    @property
    def ready(self) -> bool:
        """True while messages are handled."""
        return self.status is QueueStatus.RUNNING

    @property
    def reason(self) -> str:
        """Why it is not ready; empty while it is."""
        return self.status.value
