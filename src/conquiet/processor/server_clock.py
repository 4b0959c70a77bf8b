"""The server's clock. Times in messages are server times."""

import time


class ServerClock:
    """The clock of this host, corrected by the difference to the server's clock."""

    __slots__ = ("_ahead_ms",)

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """Return the estimated server time in milliseconds since the epoch."""
        return int(time.time() * 1000) + self._ahead_ms

    def correct(self, ahead_ms: int) -> None:
        """Record how far the server's clock is ahead of this host's."""
        self._ahead_ms = ahead_ms
