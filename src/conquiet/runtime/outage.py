"""The pause of an engine while a server that its handler needs is unavailable.

    open ──fault──▶ paused ──backoff──▶ probing ──any other result──▶ open
                      ▲                    │
                      └───────fault────────┘

If a handler raises ``InfrastructureError``, its message is released to the group and the delivery is not counted. While
paused, nothing is fetched, and messages fetched before are released instead of started, because other hosts may reach
the server. While probing, one message is fetched. Only the result of a message started after the last fault ends the
pause: an earlier start proves nothing about the current state of the server. If there is no result within the longest
pause (the handler is slow, or there is no message), consumption resumes. A fault then costs another pause but no
delivery.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from enum import Enum

from conquiet.core.backoff import Backoff
from conquiet.core.log import FactLogger
from conquiet.metrics.registry import RUNTIME_OUTAGES_TOTAL
from conquiet.metrics.safety import count

logger = FactLogger(__name__)


class _PauseState(Enum):
    OPEN = "open"
    PAUSED = "paused"
    PROBING = "probing"  # one message may be fetched
    PROBED = "probed"  # the message was fetched


class OutagePause:
    """Limits how much may be fetched. Belongs to the thread of the event loop.

    Args:
        group: The consumer group, for the log and the metric.
        backoff: Pause before each probe.
        on_change: Called when the limit is raised.

    Attributes:
        is_on: True from the first fault until a message started later has another result.
    """

    def __init__(self, group: str, backoff: Backoff, *, on_change: Callable[[], None]) -> None:
        self._group = group
        self._backoff = backoff
        self._on_change = on_change
        self._state = _PauseState.OPEN
        self._failures = 0  # consecutive: the fault that started the pause, and failed probes
        self._began_at = 0.0
        self._last_fault_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_on = False

    @property
    def is_paused(self) -> bool:
        """True while no message may start, not even a probe."""
        return self._state is _PauseState.PAUSED

    def limit(self, count: int) -> int:
        """Return how many of ``count`` messages may be fetched."""
        if self._state is _PauseState.OPEN:
            return count
        return min(count, 1) if self._state is _PauseState.PROBING else 0

    def record_fetch(self) -> None:
        """Record that messages were fetched. While probing, the first of them is the probe."""
        if self._state is _PauseState.PROBING:
            self._state = _PauseState.PROBED

    def record_fault(self, error: BaseException | None, *, started_at: float) -> None:
        """Pause because of an infrastructure fault in a message started at ``started_at``."""
        if self.is_on and started_at <= self._last_fault_at:
            return  # it was already running when the pause started
        self._failures += 1
        self._last_fault_at = time.monotonic()
        pause_s = self._backoff.delay_s(self._failures)
        if not self.is_on:
            self.is_on = True
            self._began_at = self._last_fault_at
            count(RUNTIME_OUTAGES_TOTAL, self._group)
            logger.failure(
                logging.WARNING,
                "consumption paused: a server that the handler needs is unavailable; messages keep their deliveries, "
                "next probe in %(next_probe_s)s s",
                error,
                group=self._group,
                next_probe_s=round(pause_s, 1),
            )
        self._state = _PauseState.PAUSED
        self._after(pause_s, self._probe)

    def record_result(self, *, started_at: float) -> None:
        """Record any other result, success or failure, of a message started at ``started_at``."""
        if self.is_on and started_at > self._last_fault_at:
            self._resume()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _probe(self) -> None:
        self._state = _PauseState.PROBING
        self._after(self._backoff.cap_s, self._resume)
        self._on_change()

    def _resume(self) -> None:
        self.close()
        logger.warning(
            "consumption resumed after %(paused_s)s s and %(probes)s failed attempts",
            group=self._group,
            paused_s=round(time.monotonic() - self._began_at, 1),
            probes=self._failures,
        )
        self._failures = 0
        self._state = _PauseState.OPEN
        self.is_on = False
        self._on_change()

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_later(delay_s, call)
