"""How much may still be fetched, shared by all fetchers of one pool. Pure.

Never more is in flight or on its way than there are slots plus prefetch. What a read may bring is reserved while it is
under way. A read that only waits for entries reserves little, and from the prefetch: it must not keep slots from a
fetcher that has work for them.
"""


class FetchBudget:
    """Slots and prefetch, and what each fetcher has reserved of them.

    Args:
        slots: Handlers that can run at once.
        prefetch: Messages that may be held beyond them.
        fetchers: Number of fetchers.
    """

    def __init__(self, slots: int, prefetch: int, fetchers: int) -> None:
        self.slots = slots
        self.prefetch = prefetch
        self._fetchers = fetchers
        self._empty_turns = 0
        self._reading: dict[object, int] = {}
        self._waiting: dict[object, int] = {}
        # In order of arrival: the fetcher that has waited longest is served first.
        self._wanting: dict[object, None] = {}

    @property
    def is_oversubscribed(self) -> bool:
        """True if not every fetcher can wait at the same time: they take turns."""
        return self.slots + self.prefetch < self._fetchers

    @property
    def may_block(self) -> bool:
        """False if a read that waits would keep the only slot from a fetcher that may have work for it."""
        return not self.is_oversubscribed or self._empty_turns >= self._fetchers

    def record(self, found: int) -> None:
        """Record how many entries a read has brought."""
        self._empty_turns = 0 if found else self._empty_turns + 1

    def available(self, fetcher: object, in_flight: int, prefetch_now: int) -> int:
        """Return how many entries a read that does not wait may bring. 0: the fetcher is served later.

        Args:
            fetcher: The caller.
            in_flight: Messages that are running or waiting for a slot.
            prefetch_now: How much of the prefetch is worth filling at present.
        """
        under_way = _others(self._reading, fetcher)
        free = min(self.slots + prefetch_now - in_flight - under_way, self._free(fetcher, in_flight))
        others = [other for other in self._wanting if other is not fetcher]
        ahead = others if fetcher not in self._wanting else others[: list(self._wanting).index(fetcher)]
        share = free // (len(others) + 1) or int(free > len(ahead))
        if share <= 0:
            self._wanting.setdefault(fetcher)
            return 0
        return share

    def available_for_wait(self, fetcher: object, in_flight: int) -> int:
        """Return how many entries a read that waits may bring; 0 if everything is reserved."""
        free = self._free(fetcher, in_flight)
        if self._fetchers == 1:
            return free
        return max(0, min(free, max(1, self.prefetch // self._fetchers)))

    def reserve(self, fetcher: object, count: int, *, waiting: bool) -> None:
        """Reserve for a read that may bring so many."""
        self.release(fetcher)
        self._wanting.pop(fetcher, None)
        (self._waiting if waiting else self._reading)[fetcher] = count

    def release(self, fetcher: object) -> None:
        """Return the reservation: the read has ended, and what it brought is in flight."""
        self._reading.pop(fetcher, None)
        self._waiting.pop(fetcher, None)

    def leave(self, fetcher: object) -> None:
        """Forget the fetcher: it has stopped."""
        self.release(fetcher)
        self._wanting.pop(fetcher, None)

    def _free(self, fetcher: object, in_flight: int) -> int:
        aside = _others(self._reading, fetcher) + _others(self._waiting, fetcher)
        return self.slots + self.prefetch - in_flight - aside


def _others(by_fetcher: dict[object, int], fetcher: object) -> int:
    return sum(by_fetcher.values()) - by_fetcher.get(fetcher, 0)
