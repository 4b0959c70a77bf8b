"""Limit the rate of a long operation."""

from conquiet.core.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import ConfigurationError


class Throttle:
    """Spreads steps evenly over time. A step that was late is not made up for.

    Args:
        rate_per_s: Most steps per second; None: no limit.
        clock: Replaced in tests.

    Raises:
        ConfigurationError: The rate is not a number above 0.
    """

    def __init__(self, rate_per_s: float | None, clock: Clock = SYSTEM_CLOCK) -> None:
        if rate_per_s is not None and (type(rate_per_s) not in {int, float} or not rate_per_s > 0):
            raise ConfigurationError("rate_per_s must be a number above 0")
        self._interval_s = 0.0 if rate_per_s is None else 1.0 / rate_per_s
        self._clock = clock
        self._next_s = clock.monotonic()

    def reserve(self, steps: int = 1) -> float:
        """Reserve the next steps and return the seconds to wait before them."""
        now_s = self._clock.monotonic()
        wait_s = max(0.0, self._next_s - now_s)
        self._next_s = now_s + wait_s + steps * self._interval_s
        return wait_s
