"""Settle the deliveries of one link. A new link is a new session; earlier deliveries are never settled on it."""

import asyncio

from conquiet.rabbit.ack_window import AckWindow
from conquiet.rabbit.connection import Link
from conquiet.rabbit.counters import DeliveryOutcome, DeliveryStats
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.frames import Arrival
from conquiet.rabbit.settle import Disposition


class Session:
    """Binds every delivery to the channel it came from.

    Acknowledgements are gathered until the next iteration of the loop, or until half of the prefetch window is
    finished, and then sent as one multiple-ack where the window allows it. If the process dies in between, those
    messages are delivered again, as after any crash.

    Args:
        link: Where they came from.
        stats: Where they are counted.
        prefetch: How many unsettled ones the broker sends.
    """

    __slots__ = ("_flush_at", "_flush_scheduled", "_loop", "_stats", "_window", "link", "made_progress")

    def __init__(self, link: Link, stats: DeliveryStats, prefetch: int) -> None:
        self.link = link
        self.made_progress = False
        self._stats = stats
        self._window = AckWindow()
        self._loop = asyncio.get_running_loop()
        self._flush_scheduled = False
        # Half of the window: the broker can send the next half while we work on this one.
        self._flush_at = max(1, prefetch // 2)

    @property
    def queue(self) -> str:
        """Name of the consumed queue."""
        return self._stats.queue

    @property
    def is_open(self) -> bool:
        """Whether a disposition would still reach the broker."""
        return self.link.is_open

    def received(self, arrivals: list[Arrival]) -> list[Delivery]:
        """Enter deliveries into the window."""
        self._window.arrived([arrival[0] for arrival in arrivals])
        return [Delivery(self, *arrival) for arrival in arrivals]

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge a delivery, together with others."""
        if self._window.finished(delivery.tag) >= self._flush_at:
            self.flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def settle(self, delivery: Delivery, disposition: Disposition) -> None:
        """Carry out a disposition. On a lost link nothing is sent, and it is counted as stale."""
        tag = delivery.tag
        if disposition is Disposition.ACK:
            self.acknowledge(delivery)
        elif disposition is Disposition.DROP:
            self._settle_now(tag, DeliveryOutcome.DROPPED, sent=self.link.ack(singles=(tag,)))
        elif disposition is Disposition.REQUEUE:
            self._settle_now(tag, DeliveryOutcome.REQUEUED, sent=self.link.reject(tag, requeue=True))
        elif disposition is Disposition.STOP:
            # Stays open in the window, so that no multiple-ack can include it.
            self._stats.add(DeliveryOutcome.FATAL)
        else:
            self._settle_now(tag, DeliveryOutcome.DEAD_LETTERED, sent=self.link.reject(tag, requeue=False))
            if disposition is Disposition.DEAD_LETTER_AND_STOP:
                self._stats.add(DeliveryOutcome.FATAL)  # both happened

    def moved(self, delivery: Delivery) -> None:
        """Acknowledge a delivery whose copy in ``<queue>.dead`` is confirmed."""
        self._settle_now(delivery.tag, DeliveryOutcome.DEAD_LETTERED, sent=self.link.ack(singles=(delivery.tag,)))

    def skip(self, delivery: Delivery) -> None:
        """Leave a delivery unstarted whose link was lost while it waited for its turn."""
        self._settle_now(delivery.tag, DeliveryOutcome.STALE, sent=False)

    def release(self, delivery: Delivery) -> None:
        """Return a delivery that was not started to the queue."""
        self._settle_now(delivery.tag, DeliveryOutcome.RELEASED, sent=self.link.nack_requeue(delivery.tag))

    def flush(self) -> None:
        """Send the gathered acknowledgements now."""
        acks = self._window.take()
        if not acks.count:
            return
        sent = self.link.ack(up_to=acks.up_to, singles=acks.singles)
        self.made_progress = self.made_progress or sent
        # On a link that breaks halfway some acks may have arrived. They are counted as stale all the same: the
        # broker decides by what it got, and a message that comes again is not a success yet.
        self._stats.add(DeliveryOutcome.ACK if sent else DeliveryOutcome.STALE, acks.count)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _settle_now(self, tag: int, outcome: DeliveryOutcome, *, sent: bool) -> None:
        self._window.settled(tag)
        self._stats.add(outcome if sent else DeliveryOutcome.STALE)
        self.made_progress = self.made_progress or sent
