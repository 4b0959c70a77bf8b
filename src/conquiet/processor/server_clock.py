"""The server's clock: times in messages are the server's."""

import time


class ServerClock:
    """This host's clock, corrected by how far the server's is ahead."""

    __slots__ = ("_ahead_ms",)

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """Return the server's time in milliseconds since the epoch, as far as it is known."""
        return int(time.time() * 1000) + self._ahead_ms

    def correct(self, ahead_ms: int) -> None:
        """Record how far the server's clock is ahead of ours."""
        self._ahead_ms = ahead_ms
