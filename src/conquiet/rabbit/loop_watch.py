"""Notices that the event loop stood still: a coroutine blocked it, and no heartbeat could be sent meanwhile.

It cannot be helped from here. A second thread that writes heartbeats would write into the middle of somebody else's
frame, and it would keep alive what may be stuck for good. So the loss is left to happen, nothing is settled twice, and
whoever reads the log finds out why.
"""

import asyncio
from collections.abc import Callable
from typing import Final

_LOOKS: Final = 4  # in each interval


class LoopWatch:
    """Tells about every stretch in which the loop did not come round for too long.

    Args:
        on_stall: Told for how many seconds.
    """

    def __init__(self, on_stall: Callable[[float], None]) -> None:
        self._on_stall = on_stall
        self._longest_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._looked = 0.0

    def start(self, longest_s: float) -> None:
        """Watch from now on, and tell about ``longest_s`` and more; 0 watches nothing."""
        self.stop()
        self._longest_s = longest_s
        if longest_s > 0:
            self._look_later()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looked = loop.time()
        self._timer = loop.call_later(self._longest_s / _LOOKS, self._look)

    def _look(self) -> None:
        stalled_s = asyncio.get_running_loop().time() - self._looked - self._longest_s / _LOOKS
        if stalled_s >= self._longest_s:
            self._on_stall(stalled_s)
        self._look_later()
