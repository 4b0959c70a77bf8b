"""Limit the concurrent runs of one handler, in FIFO order. No I/O.

A semaphore would start waiting runs while the engine stops; this limiter rejects them.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class HandlerLimiter:
    """Limits concurrent runs.

    Args:
        count: Maximum number of concurrent runs.
        is_stopping: Returns True once nothing may start. It is called when a run ends. ``cancel_waiters`` rejects
            waiting runs before that.
    """

    def __init__(self, count: int, is_stopping: Callable[[], bool]) -> None:
        self._free = count
        self._is_stopping = is_stopping
        self._waiting: deque[asyncio.Future[bool]] = deque()

    async def acquire(self) -> bool:
        """Wait until the handler may run. Return True, or False if the engine stops. After True call ``release``."""
        if self._is_stopping():
            return False
        if self._free:
            self._free -= 1
            return True
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.result():
                self.release()  # granted in the same iteration of the loop
            raise

    def release(self) -> None:
        """Record that a run has ended. The run that has waited longest is next."""
        if self._is_stopping():
            self.cancel_waiters()
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():  # else cancelled
                granted.set_result(True)
                return
        self._free += 1

    def cancel_waiters(self) -> None:
        """Reject all waiting runs."""
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(False)
