"""When to connect again: bounded, jittered, counted. The caller waits."""

from conquiet.core.backoff import Backoff
from conquiet.metrics.outages import OutageWatch
from conquiet.metrics.registry import RUNTIME_RECONNECTS_TOTAL
from conquiet.metrics.safety import count
from conquiet.redis_transport.errors import is_redirect

_REDIRECTS = 10
"""So many redirects in a row are part of the migration of a slot."""


class Reconnect:
    """How often in a row a connection failed, and what follows from it.

    Args:
        backoff: Delay before each attempt.
        attempts: Maximum consecutive failures.
        name: Which connection, for the metric.
        outage: Logs that the server is unavailable, and that it is back.
    """

    def __init__(self, backoff: Backoff, attempts: int, name: str, outage: OutageWatch) -> None:
        self._outage = outage
        self._backoff = backoff
        self._attempts = attempts
        self._name = name
        self.failures = 0
        self.total = 0

    def delay_s(self, error: BaseException, address: str) -> float | None:
        """Note a failure. Returns how long to wait before the next attempt, or None to give up."""
        self.failures += 1
        # A slot that an operator moves is no outage. A plain client on a cluster is reported a moment later.
        if self.failures > _REDIRECTS or not is_redirect(error):
            self._outage.failed(error, address=address)
        if self.failures > self._attempts:
            return None
        self.total += 1
        count(RUNTIME_RECONNECTS_TOTAL, self._name)
        return self._backoff.delay_s(self.failures)

    def succeeded(self) -> None:
        """The connection has really been used: the next failure is a first one again."""
        if self.failures:
            self.failures = 0
            self._outage.succeeded()

    def close(self) -> None:
        """Report nothing any more: the engine ends."""
        self._outage.close()
