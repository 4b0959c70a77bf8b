"""Detect that a coroutine blocked the event loop, so that no heartbeat could be sent.

Rejected: a second thread that writes heartbeats. It could write into the middle of another frame, and it would keep the
connection of a stuck process open. Instead the connection is lost, no message is settled twice, and the log has the
reason.
"""

import asyncio
from collections.abc import Callable
from typing import Final

_CHECKS: Final = 4  # per interval


class LoopStallMonitor:
    """Reports each time that the event loop ran no callback for too long.

    Args:
        on_stall: Called with the duration in seconds.
    """

    def __init__(self, on_stall: Callable[[float], None]) -> None:
        self._on_stall = on_stall
        self._longest_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._checked_at = 0.0

    def start(self, longest_s: float) -> None:
        """Report stalls of ``longest_s`` and more from now on; 0 reports none."""
        self.stop()
        self._longest_s = longest_s
        if longest_s > 0:
            self._schedule()

    def stop(self) -> None:
        """Report nothing from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._checked_at = loop.time()
        self._timer = loop.call_later(self._longest_s / _CHECKS, self._check)

    def _check(self) -> None:
        stalled_s = asyncio.get_running_loop().time() - self._checked_at - self._longest_s / _CHECKS
        if stalled_s >= self._longest_s:
            self._on_stall(stalled_s)
        self._schedule()
