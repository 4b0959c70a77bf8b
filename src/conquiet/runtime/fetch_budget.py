"""The fetch budget that all fetchers of one pool share. No I/O.

Messages in flight plus reservations of running reads never exceed concurrency plus prefetch. Each read reserves the
number of entries it may return. A blocking read reserves little, and from the prefetch, so that it withholds no worker
from a fetcher that has work for it.
"""

from collections.abc import Callable


class FetchBudget:
    """Concurrency and prefetch, and the reservation of each fetcher.

    Args:
        concurrency: Maximum number of messages handled concurrently.
        prefetch: Maximum number of messages held beyond that.
        fetchers: Number of fetchers.
    """

    def __init__(self, concurrency: int, prefetch: int, fetchers: int) -> None:
        self.concurrency = concurrency
        self.prefetch = prefetch
        self._fetchers = fetchers
        self._empty_turns = 0
        self._reading: dict[object, int] = {}
        self._waiting: dict[object, int] = {}
        # Ordered by arrival: the fetcher that has waited longest is served first.
        self._wanting: dict[object, None] = {}
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` at every ``notify``. It runs inside the notifier, so it must only set a flag."""
        self._subscribers.append(callback)

    def notify(self) -> None:
        """Notify the fetchers that they may fetch: a worker is free, another read has ended, or a pause has ended."""
        for callback in self._subscribers:
            callback()

    @property
    def is_oversubscribed(self) -> bool:
        """True if concurrency plus prefetch is less than the number of fetchers: blocking reads must alternate."""
        return self.concurrency + self.prefetch < self._fetchers

    @property
    def may_block(self) -> bool:
        """False if a blocking read would withhold the only worker from a fetcher that may have work for it."""
        return not self.is_oversubscribed or self._empty_turns >= self._fetchers

    def record(self, found: int) -> None:
        """Record how many entries a read returned."""
        self._empty_turns = 0 if found else self._empty_turns + 1

    def available(self, fetcher: object, in_flight: int, prefetch_now: int) -> int:
        """Return how many entries a non-blocking read may return. 0: the fetcher is served later.

        Args:
            fetcher: The caller.
            in_flight: Messages that are running or waiting for a worker.
            prefetch_now: The part of the prefetch that is currently worth filling.
        """
        under_way = _others(self._reading, fetcher)
        free = min(self.concurrency + prefetch_now - in_flight - under_way, self._free(fetcher, in_flight))
        others = [other for other in self._wanting if other is not fetcher]
        ahead = others if fetcher not in self._wanting else others[: list(self._wanting).index(fetcher)]
        share = free // (len(others) + 1) or int(free > len(ahead))
        if share <= 0:
            self._wanting.setdefault(fetcher)
            return 0
        return share

    def available_for_wait(self, fetcher: object, in_flight: int) -> int:
        """Return how many entries a blocking read may return, 0 if everything is reserved."""
        free = self._free(fetcher, in_flight)
        if self._fetchers == 1:
            return free
        return max(0, min(free, max(1, self.prefetch // self._fetchers)))

    def reserve(self, fetcher: object, count: int, *, waiting: bool) -> None:
        """Reserve ``count`` entries for a read."""
        self.release(fetcher)
        self._wanting.pop(fetcher, None)
        (self._waiting if waiting else self._reading)[fetcher] = count

    def release(self, fetcher: object) -> None:
        """Return the reservation: the read has ended, and its entries are in flight."""
        self._reading.pop(fetcher, None)
        self._waiting.pop(fetcher, None)

    def remove(self, fetcher: object) -> None:
        """Remove a fetcher that has stopped."""
        self.release(fetcher)
        self._wanting.pop(fetcher, None)

    def _free(self, fetcher: object, in_flight: int) -> int:
        aside = _others(self._reading, fetcher) + _others(self._waiting, fetcher)
        return self.concurrency + self.prefetch - in_flight - aside


def _others(by_fetcher: dict[object, int], fetcher: object) -> int:
    return sum(by_fetcher.values()) - by_fetcher.get(fetcher, 0)
