"""The slots of one handler: first come, first served, and nobody begins any more once the engine stops. No I/O.

A semaphore would let those that wait begin one after the other while the engine is trying to end.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class Slots:
    """Some slots, and those who wait for one.

    Args:
        count: How many there are.
        is_stopping: True once nothing is to be begun any more. It is asked when a slot becomes free;
            ``withdraw`` is for those who would wait longer.
    """

    def __init__(self, count: int, is_stopping: Callable[[], bool]) -> None:
        self._free = count
        self._is_stopping = is_stopping
        self._waiting: deque[asyncio.Future[bool]] = deque()

    async def acquire(self) -> bool:
        """Wait for a slot. True if there is one, which has to be released; False if the engine stops."""
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
                self.release()  # it was granted in the same moment
            raise

    def release(self) -> None:
        """Give a slot back, and so to whoever has waited longest."""
        if self._is_stopping():
            self.withdraw()
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():  # else cancelled
                granted.set_result(True)
                return
        self._free += 1

    def withdraw(self) -> None:
        """Tell all who wait that there will be none."""
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(False)
