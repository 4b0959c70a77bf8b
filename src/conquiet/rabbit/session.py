"""One link's deliveries and how they are settled. A new link is a new session; old ones are never settled on it."""

import asyncio

from conquiet.rabbit.ack_window import AckWindow
from conquiet.rabbit.connection import Link
from conquiet.rabbit.counters import Fate, Tally
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.frames import Arrival
from conquiet.rabbit.settle import Settlement


class Session:
    """Binds every delivery to the channel it came from.

    Acknowledgements are gathered until the loop comes round, or until half of what the broker may send ahead is
    finished, and then sent as one multiple-ack wherever the window allows it. What is lost if we die in between: those
    messages are delivered again, as after any crash.

    Args:
        link: Where they came from.
        tally: Where they are counted.
        prefetch: How many unsettled ones the broker sends.
    """

    __slots__ = ("_flush_at", "_flush_scheduled", "_loop", "_tally", "_window", "link", "made_progress")

    def __init__(self, link: Link, tally: Tally, prefetch: int) -> None:
        self.link = link
        self.made_progress = False
        self._tally = tally
        self._window = AckWindow()
        self._loop = asyncio.get_running_loop()
        self._flush_scheduled = False
        # Half of the window: the broker can send the next half while we work on this one.
        self._flush_at = max(1, prefetch // 2)

    @property
    def is_open(self) -> bool:
        """Whether a settlement would still reach the broker."""
        return self.link.is_open

    def received(self, arrivals: list[Arrival]) -> list[Delivery]:
        """Enter deliveries into the window."""
        self._window.arrived([arrival[0] for arrival in arrivals])
        return [Delivery(self, *arrival) for arrival in arrivals]

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Carry a settlement out. On a lost link it is a counted no-op: the broker has the message back."""
        tag = delivery.tag
        if settlement is Settlement.ACK:
            if self._window.finished(tag) >= self._flush_at:
                self.flush()
            elif not self._flush_scheduled:
                self._flush_scheduled = True
                self._loop.call_soon(self._scheduled_flush)
        elif settlement is Settlement.DROP:
            self._settle_now(tag, Fate.DROPPED, sent=self.link.ack(singles=(tag,)))
        elif settlement is Settlement.REQUEUE:
            self._settle_now(tag, Fate.REQUEUED, sent=self.link.reject(tag, requeue=True))
        elif settlement is Settlement.STOP:
            # Stays open in the window, so that no multiple-ack can pass over it: settled by nobody.
            self._tally.add(Fate.FATAL)
        else:
            self._settle_now(tag, Fate.DEAD_LETTERED, sent=self.link.reject(tag, requeue=False))
            if settlement is Settlement.DEAD_LETTER_AND_STOP:
                self._tally.add(Fate.FATAL)  # both happened: whoever asks why it ended finds it here

    def skip(self, delivery: Delivery) -> None:
        """Leave a delivery unstarted whose link was lost while it waited for its turn."""
        self._settle_now(delivery.tag, Fate.STALE, sent=False)

    def hand_back(self, delivery: Delivery) -> None:
        """Give back a delivery that was not started."""
        self._settle_now(delivery.tag, Fate.HANDED_BACK, sent=self.link.hand_back(delivery.tag))

    def flush(self) -> None:
        """Send the gathered acknowledgements now."""
        acks = self._window.take()
        if not acks.count:
            return
        sent = self.link.ack(up_to=acks.up_to, singles=acks.singles)
        self.made_progress = self.made_progress or sent
        # On a link that breaks halfway some acks may have arrived. They are counted as stale all the same: the
        # broker decides by what it got, and a message that comes again is not a success yet.
        self._tally.add(Fate.ACK if sent else Fate.STALE, acks.count)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _settle_now(self, tag: int, fate: Fate, *, sent: bool) -> None:
        self._window.settled(tag)
        self._tally.add(fate if sent else Fate.STALE)
        self.made_progress = self.made_progress or sent
