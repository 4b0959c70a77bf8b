"""How long to wait before the next attempt. Pure arithmetic: who waits is somebody else's business."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from conquiet.errors import ConfigurationError
from conquiet.kernel.validation import require_seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay that grows from ``base_s`` by ``factor`` up to ``cap_s``, then spread by ``jitter``.

    Attributes:
        base_s: Delay before the second attempt.
        factor: 1 keeps the delay fixed, 2 doubles it each time.
        cap_s: No delay is ever longer than this, jitter included.
        jitter: Share of the delay that is random: 0 is none, 1 is "full jitter" (anything between
            zero and the delay). Without it, hosts that failed together come back together.
    """

    base_s: float = 0.1
    factor: float = 2.0
    cap_s: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        require_seconds("base_s", self.base_s, zero_allowed=True)
        require_seconds("cap_s", self.cap_s, zero_allowed=True)
        if not 1.0 <= self.factor <= 100.0:  # noqa: PLR2004 - beyond that it is a typing error
            raise ConfigurationError(f"factor must be between 1 and 100, got {self.factor}")
        if not 0.0 <= self.jitter <= 1.0:
            raise ConfigurationError(f"jitter must be between 0 and 1, got {self.jitter}")

    def delay_s(self, failures: int, *, rand: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the given number of failures in a row (1 or more).

        Args:
            failures: How often it has failed so far.
            rand: Source of numbers in [0, 1), for the jitter.
        """
        if failures < 1:
            raise ConfigurationError(f"failures must be 1 or more, got {failures}")
        try:
            full = min(self.base_s * self.factor ** (failures - 1), self.cap_s)
        except OverflowError:  # the power left the range of floats long after the cap was reached
            full = self.cap_s
        return full * (1.0 - self.jitter * rand())
