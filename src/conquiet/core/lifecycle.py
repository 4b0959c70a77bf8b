"""The lifecycle of every worker: start, stop and finish, each once.

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
    """Keeps the status and rejects calls in the wrong order.

    ``stop()`` only assigns: it may be called from a signal handler, from another thread, twice, or before the start.
    No lock is used, so it cannot deadlock; each step is one assignment.
    """

    __slots__ = ("_name", "_status")

    def __init__(self, name: str) -> None:
        self._name = name
        self._status = Status.NEW

    @property
    def status(self) -> Status:
        """The current status."""
        return self._status

    @property
    def is_stopping(self) -> bool:
        """True after the first ``stop()``, also once STOPPED."""
        return self._status in {Status.STOPPING, Status.STOPPED}

    def start(self) -> None:
        """Change NEW to RUNNING. Raise ``LifecycleError`` in any other status."""
        if self._status is not Status.NEW:
            raise LifecycleError(f"{self._name} cannot start: it is {self._status.value}. Create a new one.")
        self._status = Status.RUNNING

    def require_new(self, what: str) -> None:
        """Raise ``LifecycleError`` after the start: ``what`` can only be set before it."""
        if self._status is not Status.NEW:
            raise LifecycleError(f"{self._name} is {self._status.value}: its {what} can only be set before the start")

    def stop(self) -> None:
        """Request the stop. A worker that never ran is STOPPED immediately. A second call changes nothing."""
        if self._status is Status.NEW:
            self._status = Status.STOPPED
        elif self._status is Status.RUNNING:
            self._status = Status.STOPPING

    def finish(self) -> None:
        """Change any status to STOPPED."""
        self._status = Status.STOPPED


class Readiness(Protocol):
    """The health of a worker, determined without a server call."""

    @property
    def ready(self) -> bool:
        """True while the worker does its work."""
        ...

    @property
    def reason(self) -> str:
        """Why the worker is not ready, in a few words. Empty while it is ready."""
        ...


@runtime_checkable
class Worker(Protocol):
    """The interface of everything that runs until it is stopped, for ``conquiet worker`` and applications.

    ``stop()`` only assigns and may be called from a signal handler. A second call forces the stop if handlers can be
    interrupted. ``health()`` may be called at any time and never raises. ``close()`` releases connections after the
    end and may be called twice. Asyncio workers are also ``async with`` contexts, synchronous workers ``with``
    contexts.
    """

    @property
    def name(self) -> str:
        """Name for logs and probes."""
        ...

    def run(self) -> Any:
        """Work until stopped. A coroutine, or a blocking call for a synchronous worker."""
        ...

    def stop(self) -> None:
        """Request the stop."""
        ...

    def health(self) -> Readiness:
        """Report whether the worker is ready."""
        ...

    def close(self) -> Any:
        """Release the connections of the worker."""
        ...

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within the grace period."""
        ...


def handled_by(worker: Worker) -> int | None:
    """Return how many messages a worker has handled since its start. None if it does not count them."""
    health = worker.health()
    handled = getattr(health, "handled", None)
    if handled is not None:
        return int(handled)
    streams = getattr(health, "streams", None)
    if streams is None:
        return None
    return int(sum(counts.succeeded + counts.failed for counts in streams.values()))
