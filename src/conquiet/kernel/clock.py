"""Where time comes from, so that tests can bring their own."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one to measure with, one to tell the date by."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; only differences mean anything."""
        ...

    def time(self) -> float:
        """Seconds since the epoch; may jump when the machine's clock is set."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """See ``time.monotonic``."""
        return time.monotonic()

    def time(self) -> float:
        """See ``time.time``."""
        return time.time()


SYSTEM_CLOCK = SystemClock()
