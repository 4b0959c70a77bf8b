"""The source of time; tests pass their own."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one for durations, one for dates."""

    def monotonic(self) -> float:
        """Return seconds that never decrease; only differences have a meaning."""
        ...

    def time(self) -> float:
        """Return seconds since the epoch; may jump when the system clock is set."""
        ...


class SystemClock:
    """The system's clocks."""

    def monotonic(self) -> float:
        """See ``time.monotonic``."""
        return time.monotonic()

    def time(self) -> float:
        """See ``time.time``."""
        return time.time()


SYSTEM_CLOCK = SystemClock()
