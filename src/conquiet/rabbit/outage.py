"""Pause a consumer while a server that its syncer needs is unavailable.

If the syncer raises ``InfrastructureError`` or ``Postpone``, the message has not failed. The delivery stays unsettled
and runs again in the same process. It does not return to the broker, so it is neither marked as redelivered nor
counted.

    open ──InfrastructureError──▶ paused ──backoff──▶ one message probes ──any result──▶ open
                                    ▲                       │
                                    └──InfrastructureError──┘

``Postpone`` delays only its message; the others continue.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from conquiet.core.backoff import Backoff
from conquiet.core.log import FactLogger
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.syncer import Interruption, Unavailable

logger = FactLogger(__name__)

_REQUEUE: Final = Backoff(base_s=0.2, cap_s=10.0)


class SyncerPause:
    """Holds deliveries that wait for another run. Used only in the event loop's thread.

    Args:
        queue: The consumed queue, for the log.
        submit: Passes deliveries to the workers.
        recall: Takes unstarted deliveries back from the workers.
        backoff: Waiting times between probes.
    """

    def __init__(
        self,
        queue: str,
        submit: Callable[[list[Delivery]], None],
        recall: Callable[[], list[Delivery]],
        backoff: Backoff,
    ) -> None:
        self._queue = queue
        self._submit = submit
        self._recall = recall
        self._backoff = backoff
        self._held: deque[Delivery] = deque()
        self._failures = 0  # consecutive, of probes and of the message that began the pause
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._probe: Delivery | None = None
        self._waiting: dict[Delivery, asyncio.TimerHandle] = {}
        self._postponed: dict[Delivery, int] = {}

    @property
    def is_paused(self) -> bool:
        """True while only a probe may start."""
        return self._failures > 0

    def submit(self, deliveries: list[Delivery]) -> None:
        """Pass deliveries on, or hold them until the pause ends."""
        if not self.is_paused:
            self._submit(deliveries)
            return
        self._held += deliveries
        if self._timer is None and self._probe is None:  # a probe was due, and there was no delivery for it
            self._send_probe()

    def interrupted(self, delivery: Delivery, why: Interruption) -> None:
        """Hold a delivery after a run without a result."""
        if isinstance(why, Unavailable):
            self._pause(delivery, why)
            return
        self._ended(delivery)
        times = self._postponed[delivery] = self._postponed.get(delivery, 0) + 1
        if times == 1:
            logger.info("message postponed by the syncer", queue=self._queue, delivery_tag=delivery.tag)
        loop = asyncio.get_running_loop()
        self._waiting[delivery] = loop.call_later(_REQUEUE.delay_s(times), self._run_again, delivery)

    def finished(self, delivery: Delivery) -> None:
        """Record that a run had a result, success or failure."""
        if self._postponed:
            self._postponed.pop(delivery, None)
        if delivery is self._probe:
            self._ended(delivery)

    def link_lost(self) -> None:
        """Schedule another probe if the current one belongs to a lost link: it may never have started."""
        if self._probe is not None and not self._probe.session.is_open:
            self._probe = None
            self._timer = asyncio.get_running_loop().call_later(self._backoff.delay_s(1), self._send_probe)

    def take_unstarted(self) -> list[Delivery]:
        """Remove and return all unstarted deliveries, and cancel all timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for timer in self._waiting.values():
            timer.cancel()
        unstarted = [*self._held, *self._waiting, *self._recall()]
        self._held.clear()
        self._waiting.clear()
        self._postponed.clear()
        return unstarted

    # -------------------------------------------------------------- inside
    def _pause(self, delivery: Delivery, why: Unavailable) -> None:
        self._held.appendleft(delivery)
        if self.is_paused and delivery is not self._probe:
            return  # the message was running when the pause began
        self._probe = None
        self._failures += 1
        pause_s = self._backoff.delay_s(self._failures)
        if self._failures == 1:
            self._since = time.monotonic()
            self._held += self._recall()
            logger.failure(
                logging.WARNING,
                "consumption paused: a server that the syncer needs is unavailable; messages keep their attempts, "
                "next probe in %(next_probe_s)s s",
                why.failure,
                queue=self._queue,
                next_probe_s=round(pause_s, 1),
            )
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._send_probe)

    def _send_probe(self) -> None:
        self._timer = None
        while self._held:
            delivery = self._held.popleft()
            if delivery.session.is_open:
                self._probe = delivery
                self._submit([delivery])
                return
            delivery.session.skip(delivery)  # its link was lost: the broker delivers it again

    def _ended(self, delivery: Delivery) -> None:
        if delivery is not self._probe:
            return
        self._probe = None
        logger.warning(
            "consumption resumed after %(paused_s)s s and %(probes)s failed attempts",
            queue=self._queue,
            paused_s=round(time.monotonic() - self._since, 1),
            probes=self._failures,
        )
        self._failures = 0
        held = list(self._held)
        self._held.clear()
        self._submit(held)

    def _run_again(self, delivery: Delivery) -> None:
        del self._waiting[delivery]
        self.submit([delivery])
