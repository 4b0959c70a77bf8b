"""Pauses between attempts while a server that the handler needs is unavailable.

It logs one line when the outage begins and one when it ends, and none for the attempts between. SPEC(000) forbids
automatic retries, so only ``QueueConsumer.run(recover=True)`` uses this.
"""

import logging
import time

from conquiet.config import QueueConfig
from conquiet.core.backoff import Backoff
from conquiet.core.log import FactLogger

logger = FactLogger(__name__)

SHORTEST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0


class Outage:
    """Counts the attempts of one outage. The caller sleeps.

    Args:
        config: Stream and group for the log. A pause ends before another consumer may claim the message.
    """

    def __init__(self, config: QueueConfig) -> None:
        self._about = {"stream": config.stream_key, "group": config.consumer_group}
        longest_s = min(LONGEST_PAUSE_S, config.claim_idle_ms / 3000)
        self._backoff = Backoff(base_s=SHORTEST_PAUSE_S, cap_s=longest_s, jitter=0.0)
        self._attempts = 0
        self._since = 0.0

    @property
    def is_on(self) -> bool:
        """True from the first failure until the next success."""
        return self._attempts > 0

    def failed(self, error: Exception, message_id: str) -> float:
        """Record a failure and return the pause in seconds."""
        if not self._attempts:
            self._since = time.monotonic()
            logger.failure(
                logging.WARNING,
                "a server that the handler needs is unavailable; consumption is paused and the message stays pending",
                error,
                **self._about,
                message_id=message_id,
            )
        self._attempts += 1
        return self._backoff.delay_s(self._attempts)

    def over(self) -> None:
        """Record a success."""
        if self._attempts:
            logger.info(
                "the server that the handler needs is available again; consumption resumes after %(outage_s)s s",
                **self._about,
                attempts=self._attempts,
                outage_s=round(time.monotonic() - self._since, 3),
            )
            self._attempts = 0
