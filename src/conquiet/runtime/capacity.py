"""Notify fetchers that they may fetch: a worker is free, another read has ended, or a pause has ended."""

from collections.abc import Callable


class CapacitySignal:
    """Calls every subscriber. Belongs to one event loop.

    The pool and the outage pause notify; fetchers subscribe. Neither side depends on the other.
    """

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` at every notification. It runs inside the notifier, so it must only set a flag."""
        self._subscribers.append(callback)

    def notify(self) -> None:
        """Call all subscribers."""
        for callback in self._subscribers:
            callback()
