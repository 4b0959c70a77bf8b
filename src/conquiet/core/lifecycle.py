"""The lifecycle of every worker: run, stop, health, close. A worker lives once.

NEW ──start──▶ RUNNING ──stop──▶ STOPPING ──finish──▶ STOPPED
│                │                                      ▲
└──── stop ──────┴──────────────── finish ──────────────┘

See docs/decisions/0014.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable

from conquiet.errors import LifecycleError

_SLICE_S: Final = 0.1
"""Longest sleep without a check for a stop. An event could end a sleep, but setting it takes a lock, which a signal
handler must not do."""


_is_importing: ContextVar[bool] = ContextVar("conquiet_is_importing", default=False)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Refuse the start of workers inside the block: a command imports their module and starts them itself.

    A start there would never return to the command, which could not report its state or apply its options.
    """
    token = _is_importing.set(True)
    try:
        yield
    finally:
        _is_importing.reset(token)


class Status(Enum):
    """The state of a worker."""

    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a worker at one moment, determined without a call to a server.

    Attributes:
        status: Place in the lifecycle.
        reason: Why the worker does not do its work, in a few words. Empty while it does. Follows from the status unless
            that is RUNNING.
        handled: Handlers that have ended since the start, with success or failure. None if the worker runs no
            handlers.
    """

    status: Status
    reason: str = ""
    handled: int | None = None

    def __post_init__(self) -> None:
        if self.status is not Status.RUNNING:
            object.__setattr__(self, "reason", "not started" if self.status is Status.NEW else self.status.value)

    @property
    def ready(self) -> bool:
        """True while the worker runs and does its work."""
        return not self.reason


class Lifecycle:
    """Keeps the status and rejects calls in the wrong order.

    ``request_stop()`` and ``stop()`` only assign: they may be called from a signal handler, from another thread, twice,
    or before the start. No lock is used, so they cannot deadlock; each step is one assignment.

    Attributes:
        status: The current status. Set by the methods only.
        is_forced: True after the second ``request_stop()``.
    """

    __slots__ = ("_is_requested", "_name", "is_forced", "status")

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_requested = False
        self.status = Status.NEW
        self.is_forced = False

    @property
    def is_stopping(self) -> bool:
        """True after the first ``stop()``, also once STOPPED."""
        return self.status in {Status.STOPPING, Status.STOPPED}

    def start(self) -> None:
        """Change NEW to RUNNING. Raise ``LifecycleError`` in any other status."""
        if self.status is not Status.NEW:
            raise LifecycleError(f"{self._name} cannot start: it is {self.status.value}. Create a new one.")
        self.status = Status.RUNNING

    def require_new(self, what: str) -> None:
        """Raise ``LifecycleError`` after the start: ``what`` can only be set before it."""
        if self.status is not Status.NEW:
            raise LifecycleError(f"{self._name} is {self.status.value}: its {what} can only be set before the start")

    def request_stop(self) -> bool:
        """Stop because the worker's ``stop()`` was called. Return True from the second call on: the stop is forced.

        Ends for other reasons (a failure, ``close()``, leaving a block) call ``stop()``: the first ``stop()`` of a
        worker that ends already is not meant to abort its handlers.
        """
        if self._is_requested:
            self.is_forced = True
        self._is_requested = True
        self.stop()
        return self.is_forced

    def stop(self) -> None:
        """Begin the stop. A worker that never ran is STOPPED immediately. A second call changes nothing."""
        if self.status is Status.NEW:
            self.status = Status.STOPPED
        elif self.status is Status.RUNNING:
            self.status = Status.STOPPING

    def finish(self) -> None:
        """Change any status to STOPPED."""
        self.status = Status.STOPPED

    @property
    def _is_over(self) -> bool:
        """True before the start and after the end."""
        return self.status in {Status.NEW, Status.STOPPED}

    def _reject_during_import(self) -> None:
        if _is_importing.get():
            raise LifecycleError(
                f"{self._name} cannot start: a command is importing its module, and starts it itself. "
                'Put the start, and everything else that only a program does, below: if __name__ == "__main__":'
            )


class AsyncLifecycle(Lifecycle):
    """The lifecycle of a worker with a coroutine ``run()``."""

    __slots__ = ("_waiting",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._waiting: list[asyncio.Future[None]] = []

    def start(self) -> None:
        """See ``Lifecycle``. Refused while a command imports the module."""
        self._reject_during_import()
        super().start()

    def finish(self) -> None:
        """See ``Lifecycle``."""
        super().finish()
        for waiting in tuple(self._waiting):
            with contextlib.suppress(RuntimeError):  # the loop is closed: its caller does not wait any more
                waiting.get_loop().call_soon_threadsafe(_set_done, waiting)

    async def wait_ended(self) -> None:
        """Wait for the end of ``run()``, if it was called. It may run in the event loop of another thread."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            if not self._is_over:  # checked after the append, so that finish() cannot miss it
                await waiting
        finally:
            self._waiting.remove(waiting)


def _set_done(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


class BlockingLifecycle(Lifecycle):
    """The lifecycle of a worker with a ``run()`` that blocks a thread."""

    __slots__ = ("_ended", "_thread")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._ended = threading.Event()
        self._thread: int | None = None

    def start(self, *, in_background: bool = False) -> None:
        """See ``AsyncLifecycle``. ``in_background``: another thread than the caller's is going to run."""
        self._reject_during_import()
        super().start()
        self._thread = None if in_background else threading.get_ident()

    def finish(self) -> None:
        """See ``Lifecycle``."""
        super().finish()
        self._ended.set()

    def wait_ended(self) -> bool:
        """Wait for the end of ``run()``. Return False without waiting if ``run()`` itself is the caller."""
        if self._is_over:
            return True
        if self._thread == threading.get_ident():
            return False
        self._ended.wait()
        return True

    def sleep(self, duration_s: float) -> bool:
        """Sleep, at most until a tenth of a second after a stop. Return False if the worker is stopping."""
        sleep_unless(lambda: self.is_stopping, duration_s)
        return not self.is_stopping


def sleep_unless(is_stopping: Callable[[], bool], duration_s: float) -> None:
    """Sleep, at most until a tenth of a second after ``is_stopping`` returns True."""
    deadline = time.monotonic() + duration_s
    while not is_stopping() and (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(left_s, _SLICE_S))


@runtime_checkable
class Worker(Protocol):
    """The interface of everything that runs until it is stopped, for ``conquiet worker`` and applications.

    ``run()`` works until stopped, once: after a run or a stop it raises ``LifecycleError``.

    ``stop()`` lets running handlers finish. A second call forces the end: handlers that can be cancelled are cancelled,
    and waits for a server are aborted with their connections. Nothing is acknowledged without its commit. A handler
    that runs in a thread cannot be interrupted. ``stop()`` takes no lock: signal handlers and other threads may call
    it.

    ``health()`` may be called at any time, from any thread, and never raises.

    ``close()`` stops a running worker without forcing it, waits for its end, and releases what the worker has opened.
    It may be called at any time and twice. Called by a handler or a callback of the worker it only stops: it cannot
    wait for itself.

    Asyncio workers are ``async with`` contexts, synchronous workers ``with`` contexts. Leaving the block closes the
    worker. Entering it starts an asyncio worker in the background.
    """

    @property
    def name(self) -> str:
        """Name for logs and probes."""
        ...

    def run(self) -> Any:
        """Work until stopped. A coroutine, or a blocking call for a synchronous worker."""
        ...

    def stop(self) -> None:
        """Request the stop; the second call forces it."""
        ...

    def health(self) -> Health:
        """Report whether the worker does its work."""
        ...

    def close(self) -> Any:
        """Stop, wait for the end, and release what was opened."""
        ...

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within the grace period."""
        ...


@runtime_checkable
class SupportsConcurrency(Protocol):
    """An optional part of a ``Worker`` that runs handlers: ``conquiet worker --concurrency`` calls it."""

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of concurrent handlers, before ``run()``."""
        ...


@runtime_checkable
class SupportsParts(Protocol):
    """An optional part of a ``Worker`` that consists of several: ``conquiet worker --only`` calls it."""

    def set_only(self, only: Iterable[str]) -> None:
        """Choose the parts that ``run()`` runs, before it. Raise ``ConfigurationError`` for a part it does not have."""
        ...


@runtime_checkable
class SupportsServerWait(Protocol):
    """An optional part of a ``Worker`` that waits for its servers when it starts.

    ``conquiet worker`` sets 0, because its supervisor waits. ``run()`` then raises ``ServerUnreachableError``.
    """

    def set_wait_s(self, wait_s: float) -> None:
        """Change how long ``run()`` waits for servers that cannot be reached, before it."""
        ...
