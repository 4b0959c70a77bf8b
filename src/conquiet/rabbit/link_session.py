"""Settle the deliveries of one link. A new link gets a new session, and never settles earlier deliveries."""

import asyncio

from conquiet.rabbit.ack_window import AckWindow
from conquiet.rabbit.connection import Link
from conquiet.rabbit.counters import DeliveryOutcome, DeliveryStats
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.frames import Arrival
from conquiet.rabbit.settle import Disposition


class LinkSession:
    """Settles each delivery on the channel that delivered it.

    Acknowledgements are gathered until the next iteration of the loop, or until half of the prefetch window is
    finished, and then sent together, as a multiple-ack where ``AckWindow`` allows it. If the process dies in between,
    those messages are delivered again, as after any crash.

    Args:
        link: The link of the deliveries.
        stats: Counts the deliveries.
        prefetch: Maximum number of unsettled deliveries.

    Attributes:
        queue: Name of the consumed queue.
        made_progress: True once a disposition was sent.
    """

    __slots__ = ("_flush_at", "_flush_scheduled", "_loop", "_stats", "_window", "link", "made_progress", "queue")

    def __init__(self, link: Link, stats: DeliveryStats, prefetch: int) -> None:
        self.link = link
        self.queue = stats.queue
        self.made_progress = False
        self._stats = stats
        self._window = AckWindow()
        self._loop = asyncio.get_running_loop()
        self._flush_scheduled = False
        # Half of the window: the broker can send the next half while this one is processed.
        self._flush_at = max(1, prefetch // 2)

    @property
    def is_open(self) -> bool:
        """True while dispositions can be sent to the broker."""
        return self.link.is_open

    def received(self, arrivals: list[Arrival]) -> list[Delivery]:
        """Add received deliveries to the window, and return them as objects."""
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
        """Carry out a disposition. On a lost link nothing is sent, and the delivery is counted as stale."""
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
        """Acknowledge a delivery after its copy in ``<queue>.dead`` is confirmed."""
        self._settle_now(delivery.tag, DeliveryOutcome.DEAD_LETTERED, sent=self.link.ack(singles=(delivery.tag,)))

    def skip(self, delivery: Delivery) -> None:
        """Count an unstarted delivery as stale: its link was lost while it waited."""
        self._settle_now(delivery.tag, DeliveryOutcome.STALE, sent=False)

    def release(self, delivery: Delivery) -> None:
        """Return an unstarted delivery to the queue."""
        self._settle_now(delivery.tag, DeliveryOutcome.RELEASED, sent=self.link.nack_requeue(delivery.tag))

    def flush(self) -> None:
        """Send the gathered acknowledgements now."""
        acks = self._window.take()
        if not acks.count:
            return
        sent = self.link.ack(up_to=acks.up_to, singles=acks.singles)
        self.made_progress = self.made_progress or sent
        # If the link is lost halfway, some acks may have arrived. All are counted as stale, because the broker may
        # deliver each message again, and then it is not a success yet.
        self._stats.add(DeliveryOutcome.ACK if sent else DeliveryOutcome.STALE, acks.count)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _settle_now(self, tag: int, outcome: DeliveryOutcome, *, sent: bool) -> None:
        self._window.settled(tag)
        self._stats.add(outcome if sent else DeliveryOutcome.STALE)
        self.made_progress = self.made_progress or sent
