"""Start, stop, end: a life that happens once.

NEW ──start──▶ RUNNING ──stop──▶ STOPPING ──finish──▶ STOPPED
│                │                                      ▲
└──── stop ──────┴──────────────── finish ──────────────┘
"""

from enum import Enum

from conquiet.errors import LifecycleError


class Status(Enum):
    """Where something that is started and stopped stands."""

    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Lifecycle:
    """Keeps the status and refuses the wrong order.

    ``stop()`` only assigns: it may be called from a signal handler, another thread, twice, or
    before the start. There is no lock to deadlock on; each step is one assignment.
    """

    __slots__ = ("_name", "_status")

    def __init__(self, name: str) -> None:
        self._name = name
        self._status = Status.NEW

    @property
    def status(self) -> Status:
        """Where it stands now."""
        return self._status

    @property
    def is_stopping(self) -> bool:
        """True from the first ``stop()`` on, also after the end."""
        return self._status in {Status.STOPPING, Status.STOPPED}

    def start(self) -> None:
        """NEW → RUNNING. Anything else is a ``LifecycleError``."""
        if self._status is not Status.NEW:
            raise LifecycleError(f"{self._name} cannot start: it is {self._status.value}. Create a new one.")
        self._status = Status.RUNNING

    def require_new(self, what: str) -> None:
        """Raise ``LifecycleError`` unless it has not been started: ``what`` can only be set before."""
        if self._status is not Status.NEW:
            raise LifecycleError(f"{self._name} is {self._status.value}: its {what} can only be set before the start")

    def stop(self) -> None:
        """Ask for the end. What never ran is over at once; a second request changes nothing."""
        if self._status is Status.NEW:
            self._status = Status.STOPPED
        elif self._status is Status.RUNNING:
            self._status = Status.STOPPING

    def finish(self) -> None:
        """The end itself, from wherever it stood."""
        self._status = Status.STOPPED

    def require_running(self) -> None:
        """Raise ``LifecycleError`` unless RUNNING."""
        if self._status is not Status.RUNNING:
            raise LifecycleError(f"{self._name} is {self._status.value}, not running")
