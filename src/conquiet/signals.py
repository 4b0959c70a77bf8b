"""Handle SIGTERM and SIGINT as a stop request. A second signal forces the end.

Python runs a signal handler between two bytecodes of the main thread, which may hold any lock at that moment: of the
logging module, of an event. A handler that takes such a lock can deadlock with itself. So this handler only assigns,
calls the callback (which must also only assign, like ``QueueConsumer.stop``) and logs in a separate thread.

If a signal arrives after an event loop has checked for signals and before it waits, its handler runs only when the loop
wakes for another reason, possibly half a minute later. So signals also write to a socket that the loop reads.

See docs/decisions/0014.
"""

import _thread
import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

from conquiet.errors import ConfigurationError

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TerminationHandlers:
    """The installed handlers. ``restore()``, or leaving the context, restores the previous handlers.

    Attributes:
        received: The signal that requested the stop. None before the first signal.
    """

    def __init__(self, stop_callback: Callable[[], None], force_callback: Callable[[], None] | None = None) -> None:
        self._stop_callback = stop_callback
        self._force_callback = force_callback
        self.received: signal.Signals | None = None
        self._waker: _LoopWaker | None = None
        self._previous = {signum: signal.signal(signum, self) for signum in _SIGNALS}

    def __call__(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's signature
        """Run as the signal handler: no lock, no logging, almost no allocation."""
        if self.received is not None:
            # A second signal: force the end. Unfinished messages stay pending.
            force, self._force_callback = self._force_callback, None
            if force is not None:
                force()
                return
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self._ask_to_stop(signal.Signals(signum))  # before the log line, which reports it
        # Not threading.Thread: its start() takes a lock and waits on an event.
        with contextlib.suppress(RuntimeError):  # no thread available: stop without a log line
            _thread.start_new_thread(_log_received, (signum,))

    def _ask_to_stop(self, signum: signal.Signals) -> None:
        self.received = signum
        self._stop_callback()
        # Two workers of one process installed handlers: stop both.
        previous = self._previous[signum]
        if isinstance(previous, TerminationHandlers) and previous.received is None:
            previous._ask_to_stop(signum)  # noqa: SLF001 - the same class

    def attach_loop(self) -> None:
        """Make signals wake the running event loop. Needed only if the handlers were installed outside it."""
        if self._waker is None:
            self._waker = _LoopWaker(asyncio.get_running_loop())

    def restore(self) -> None:
        """Restore the previous handlers, unless the application has replaced these."""
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()
        for signum, previous in self._previous.items():
            if signal.getsignal(signum) is self:
                # None: the handler was not installed from Python and cannot be restored. Use the default.
                signal.signal(signum, signal.SIG_DFL if previous is None else previous)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


class _LoopWaker:
    """Wakes an event loop when a signal arrives, unless uvloop or ``add_signal_handler`` already does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._previous = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        if self._previous != -1:
            signal.set_wakeup_fd(self._previous)
        else:
            loop.add_reader(self._receiver, self._drain)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._receiver.recv(4096)

    def close(self) -> None:
        if self._previous == -1:
            current = signal.set_wakeup_fd(-1)
            if current not in {-1, self._sender.fileno()}:
                signal.set_wakeup_fd(current)
            if not self._loop.is_closed():
                self._loop.remove_reader(self._receiver)
        self._receiver.close()
        self._sender.close()


def install_termination_handlers(
    stop_callback: Callable[[], None], force_callback: Callable[[], None] | None = None
) -> TerminationHandlers:
    """Call ``stop_callback`` exactly once when SIGTERM or SIGINT arrives. SPEC(003 §4.1).

    The callback runs inside the signal handler: it must take no lock and do no I/O. A second
    signal ends the process immediately, as if no handler were installed. With a ``force_callback`` the second signal
    calls it, and the third ends the process.

    Returns:
        A handle with the method ``restore()``, which restores the previous handlers.

    Raises:
        ConfigurationError: Not called from the main thread, where Python forbids signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "install_termination_handlers() works in the main thread only; "
            "install the handlers there and let them call stop() of what runs in this thread"
        )
    handlers = TerminationHandlers(stop_callback, force_callback)
    with contextlib.suppress(RuntimeError):  # no running event loop
        handlers.attach_loop()
    return handlers


def _log_received(signum: int) -> None:
    logger.info("Received signal %s, initiating graceful shutdown", signum)
