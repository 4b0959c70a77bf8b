"""The clock interface and the system clock. Tests pass another clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one for durations, one for dates."""

    def monotonic(self) -> float:
        """Return seconds that never decrease. Only differences are meaningful."""
        ...

    def time(self) -> float:
        """Return seconds since the epoch. The value jumps when the system clock is set."""
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
