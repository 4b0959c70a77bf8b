"""Notifies fetchers that they may fetch: a worker is free, another read has ended, a pause is over."""

from collections.abc import Callable


class CapacitySignal:
    """Calls every subscriber. Belongs to one event loop.

    The pool and the outage pause notify, fetchers subscribe. Neither side knows the other.
    """

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` at every notification. It must only note the fact: it runs inside the notifier."""
        self._subscribers.append(callback)

    def notify(self) -> None:
        """Make the subscribers check again."""
        for callback in self._subscribers:
            callback()
