"""SIGTERM and SIGINT as a request to stop, and a second one as an order.

Python runs a signal handler between two bytecodes of the main thread, which may hold any lock at
that moment: the logging module's, an event's. A handler that takes one can wait for itself for
ever. So the handler here assigns, calls the callback (which must itself only assign, like
``QueueConsumer.stop``) and leaves the log line to a thread of its own.
"""

import _thread
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from conquiet.errors import ConfigurationError

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TerminationHandlers:
    """Installed handlers; ``restore()`` (or leaving it as a context manager) puts back what was there."""

    def __init__(self, stop_callback: Callable[[], None], force_callback: Callable[[], None] | None = None) -> None:
        self._stop_callback = stop_callback
        self._force_callback = force_callback
        self._received: signal.Signals | None = None
        self._previous = {signum: signal.signal(signum, self) for signum in _SIGNALS}

    @property
    def received(self) -> signal.Signals | None:
        """The signal that asked for the stop, or None as long as none has come."""
        return self._received

    def __call__(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what Python hands over
        """Run as the signal handler: no lock, no logging, no allocation worth naming."""
        if self._received is not None:
            # Somebody is losing patience, or the stop hangs. What is unfinished stays pending.
            force, self._force_callback = self._force_callback, None
            if force is not None:
                force()
                return
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self._ask_to_stop(signal.Signals(signum))  # first: whoever reads the line may rely on it
        # Not threading.Thread: its start() takes a lock and waits on an event.
        with contextlib.suppress(RuntimeError):  # out of threads: the stop matters, the line does not
            _thread.start_new_thread(_log_received, (signum,))

    def _ask_to_stop(self, signum: signal.Signals) -> None:
        self._received = signum
        self._stop_callback()
        # Two loops in one process each installed theirs: both are asked to stop.
        previous = self._previous[signum]
        if isinstance(previous, TerminationHandlers) and previous.received is None:
            previous._ask_to_stop(signum)  # noqa: SLF001 - one of us

    def restore(self) -> None:
        """Put back the handlers that were there before, unless somebody replaced ours since."""
        for signum, previous in self._previous.items():
            if signal.getsignal(signum) is self:
                # None means it was not set from Python and cannot be put back: the default is next best.
                signal.signal(signum, signal.SIG_DFL if previous is None else previous)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def install_termination_handlers(
    stop_callback: Callable[[], None], force_callback: Callable[[], None] | None = None
) -> TerminationHandlers:
    """Call ``stop_callback`` exactly once when SIGTERM or SIGINT arrives. SPEC(003 §4.1).

    The callback runs inside the signal handler: it must take no lock and do no I/O. A second
    signal ends the process at once, as if no handler were there; with a ``force_callback`` it calls that, for who
    has others to end first, and the third one does.

    Returns:
        A handle whose ``restore()`` puts the previous handlers back.

    Raises:
        ConfigurationError: Not called from the main thread, where Python forbids signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "install_termination_handlers() works in the main thread only; "
            "install the handlers there and let them call stop() of what runs in this thread"
        )
    return TerminationHandlers(stop_callback, force_callback)


def _log_received(signum: int) -> None:
    logger.info("Received signal %s, initiating graceful shutdown", signum)
