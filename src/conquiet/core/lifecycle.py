"""The lifecycle that every worker has: start, stop, end; each happens once.

NEW ──start──▶ RUNNING ──stop──▶ STOPPING ──finish──▶ STOPPED
│                │                                      ▲
└──── stop ──────┴──────────────── finish ──────────────┘
"""

from enum import Enum
from typing import Any, Protocol, runtime_checkable

from conquiet.errors import LifecycleError


class Status(Enum):
    """The state of a worker."""

    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Lifecycle:
    """Keeps the status and refuses calls in the wrong order.

    ``stop()`` only assigns: it may be called from a signal handler, another thread, twice, or
    before the start. There is no lock to deadlock on; each step is one assignment.
    """

    __slots__ = ("_name", "_status")

    def __init__(self, name: str) -> None:
        self._name = name
        self._status = Status.NEW

    @property
    def status(self) -> Status:
        """The status now."""
        return self._status

    @property
    def is_stopping(self) -> bool:
        """True from the first ``stop()`` on, also after the end."""
        return self._status in {Status.STOPPING, Status.STOPPED}

    def start(self) -> None:
        """Change NEW to RUNNING; raise ``LifecycleError`` in any other status."""
        if self._status is not Status.NEW:
            raise LifecycleError(f"{self._name} cannot start: it is {self._status.value}. Create a new one.")
        self._status = Status.RUNNING

    def require_new(self, what: str) -> None:
        """Raise ``LifecycleError`` after the start: ``what`` can only be set before."""
        if self._status is not Status.NEW:
            raise LifecycleError(f"{self._name} is {self._status.value}: its {what} can only be set before the start")

    def stop(self) -> None:
        """Ask for the end. A worker that never ran is STOPPED at once; a second request changes nothing."""
        if self._status is Status.NEW:
            self._status = Status.STOPPED
        elif self._status is Status.RUNNING:
            self._status = Status.STOPPING

    def finish(self) -> None:
        """Change any status to STOPPED."""
        self._status = Status.STOPPED


class Readiness(Protocol):
    """What a worker reports about itself, without asking a server."""

    @property
    def ready(self) -> bool:
        """True while the worker does its work."""
        ...

    @property
    def reason(self) -> str:
        """Why it is not ready, in a few words; empty while it is."""
        ...


@runtime_checkable
class Worker(Protocol):
    """The interface of everything that runs until it is stopped; ``conquiet worker`` and applications use it.

    ``stop()`` only assigns and may be called from a signal handler; a second call forces the end where handlers can be
    interrupted. ``health()`` may be called at any time and never raises. ``close()`` releases connections after the
    end; it may be called twice. Asyncio workers are also ``async with`` contexts, synchronous ones ``with`` contexts.
    """

    @property
    def name(self) -> str:
        """Name for logs and probes."""
        ...

    def run(self) -> Any:
        """Work until stopped; a coroutine, or a blocking call of a synchronous worker."""
        ...

    def stop(self) -> None:
        """Ask for the end."""
        ...

    def health(self) -> Readiness:
        """Report whether the worker does its work now."""
        ...

    def close(self) -> Any:
        """Release what the worker has opened."""
        ...

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within the grace period."""
        ...


def handled_by(worker: Worker) -> int | None:
    """Return how many messages a worker has handled since its start; None if it does not count them."""
    health = worker.health()
    handled = getattr(health, "handled", None)
    if handled is not None:
        return int(handled)
    streams = getattr(health, "streams", None)
    if streams is None:
        return None
    return int(sum(counts.succeeded + counts.failed for counts in streams.values()))
