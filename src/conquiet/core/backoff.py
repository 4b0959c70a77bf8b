"""Compute the delay before the next attempt. Pure: the caller waits."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay that grows from ``base_s`` by ``factor`` up to ``cap_s``, then spread by ``jitter``.

    Attributes:
        base_s: Delay after the first failure.
        factor: 1 keeps the delay fixed, 2 doubles it each time.
        cap_s: Maximum delay, including jitter.
        jitter: Random share of the delay: 0 is none, 1 is "full jitter" (uniform between zero and the delay).
            Without jitter, processes that failed together retry together.
    """

    base_s: float = 0.1
    factor: float = 2.0
    cap_s: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        require_seconds("base_s", self.base_s, zero_allowed=True)
        require_seconds("cap_s", self.cap_s, zero_allowed=True)
        if not 1.0 <= self.factor <= 100.0:  # noqa: PLR2004 - a larger factor is probably a typo
            raise ConfigurationError(f"factor must be between 1 and 100, got {self.factor}")
        if not 0.0 <= self.jitter <= 1.0:
            raise ConfigurationError(f"jitter must be between 0 and 1, got {self.jitter}")

    def delay_s(self, failures: int, *, rand: Callable[[], float] = random.random) -> float:
        """Return the delay after this number of consecutive failures (1 or more).

        Args:
            failures: Consecutive failures so far.
            rand: Source of numbers in [0, 1), for the jitter.
        """
        if failures < 1:
            raise ConfigurationError(f"failures must be 1 or more, got {failures}")
        try:
            full = min(self.base_s * self.factor ** (failures - 1), self.cap_s)
        except OverflowError:  # the power exceeds the range of floats, long after the cap
            full = self.cap_s
        return full * (1.0 - self.jitter * rand())
