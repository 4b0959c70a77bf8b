"""Decide when to reconnect: bounded, jittered, counted. The caller waits."""

from conquiet.metrics.outages import OutageWatch
from conquiet.metrics.registry import RUNTIME_RECONNECTS_TOTAL
from conquiet.metrics.safety import count
from conquiet.redis_transport.errors import is_redirect
from conquiet.runtime.settings import RuntimeSettings

_REDIRECTS = 10
"""Number of consecutive redirects that are considered a slot migration, not an outage."""


class Reconnect:
    """Counts consecutive failures of a connection and returns the delay before the next attempt.

    Args:
        settings: Delay before each attempt, and maximum consecutive failures.
        name: Name of the connection, for the metric.
        outage: Logs that the server is unavailable, and that it is available again.
    """

    def __init__(self, settings: RuntimeSettings, name: str, outage: OutageWatch) -> None:
        self._outage = outage
        self._backoff, self._attempts = settings.reconnect, settings.max_reconnects
        self._name = name
        self.failures = 0
        self.total = 0

    def delay_s(self, error: BaseException, address: str) -> float | None:
        """Record a failure. Return the delay before the next attempt, or None to give up."""
        self.failures += 1
        # A slot migration is not an outage. A non-cluster client on a cluster is reported after _REDIRECTS redirects.
        if self.failures > _REDIRECTS or not is_redirect(error):
            self._outage.failed(error, address=address)
        if self.failures > self._attempts:
            return None
        self.total += 1
        count(RUNTIME_RECONNECTS_TOTAL, self._name)
        return self._backoff.delay_s(self.failures)

    def succeeded(self) -> None:
        """Reset the failure count after a successful command."""
        if self.failures:
            self.failures = 0
            self._outage.succeeded()

    def close(self) -> None:
        """Stop reporting: the engine ends."""
        self._outage.close()
