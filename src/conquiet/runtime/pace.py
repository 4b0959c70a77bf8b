"""The average handling time of an engine."""

import time

_WEIGHT = 0.05


class Pace:
    """The average handling time, which determines the prefetch.

    Attributes:
        average_s: Moving average of the handling time. It is 1,000 s until the first handler ends, so nothing is
            prefetched before that.
        last_end: When a handler last ended, on the monotonic clock.
    """

    __slots__ = ("average_s", "last_end")

    def __init__(self) -> None:
        self.average_s = 1_000.0
        self.last_end = time.monotonic()

    def record(self, began: float) -> float:
        """Record that a handler ended now. Return its duration."""
        self.last_end = now = time.monotonic()
        duration_s = now - began
        average_s = self.average_s
        self.average_s = duration_s if average_s == 1_000.0 else average_s + _WEIGHT * (duration_s - average_s)  # noqa: PLR2004
        return duration_s

    def record_many(self, began: float, number: int) -> float:
        """Record that ``number`` handlers that began together ended now. Return their duration."""
        duration_s = self.record(began)
        rest = (1.0 - _WEIGHT) ** (number - 1)
        self.average_s = duration_s + rest * (self.average_s - duration_s)
        return duration_s
