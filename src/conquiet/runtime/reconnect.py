"""Getting a connection back: bounded, jittered, counted. The decision is pure; who waits is not here."""

from conquiet.kernel.backoff import Backoff
from conquiet.metrics.registry import RUNTIME_RECONNECTS_TOTAL
from conquiet.metrics.safety import never_raises


class Reconnect:
    """How often in a row a connection failed, and what follows from it.

    Args:
        backoff: Delay before each attempt.
        attempts: How many failures in a row are borne.
        name: Which connection, for the metric.
    """

    def __init__(self, backoff: Backoff, attempts: int, name: str) -> None:
        self._backoff = backoff
        self._attempts = attempts
        self._name = name
        self.failures = 0
        self.total = 0

    def delay_s(self) -> float | None:
        """Note a failure. Returns how long to wait before the next attempt, or None to give up."""
        self.failures += 1
        if self.failures > self._attempts:
            return None
        self.total += 1
        _count(self._name)
        return self._backoff.delay_s(self.failures)

    def succeeded(self) -> None:
        """The connection has really been used: the next failure is a first one again."""
        self.failures = 0


@never_raises
def _count(name: str) -> None:
    RUNTIME_RECONNECTS_TOTAL.labels(name).inc()
