"""How much may still be fetched, shared by all who fetch for one pool. Pure.

Never more is in hand or on its way than there are slots plus store. What a read may bring is set aside while
it is under way. One that only waits for something to come sets little aside, and from the store: it must not
keep slots from a reader that has work for them.
"""


class Room:
    """Slots and store, and who has set aside what.

    Args:
        slots: Handlers that can run at once.
        store: Messages that may be held beyond them.
        readers: How many fetch.
    """

    def __init__(self, slots: int, store: int, readers: int) -> None:
        self.slots = slots
        self._store = store
        self._readers = readers
        self._empty_turns = 0
        self._under_way: dict[object, int] = {}
        self._waiting: dict[object, int] = {}
        # In the order in which they came: who has waited longest is served first.
        self._wanting: dict[object, None] = {}

    @property
    def is_crowded(self) -> bool:
        """True if not every reader can wait at the same time: they take turns."""
        return self.slots + self._store < self._readers

    @property
    def may_wait(self) -> bool:
        """False if a read that waits would keep the only room from a reader that may have work for it."""
        return not self.is_crowded or self._empty_turns >= self._readers

    def note(self, found: int) -> None:
        """A read brought so many."""
        self._empty_turns = 0 if found else self._empty_turns + 1

    def for_reading(self, reader: object, in_hand: int, store_now: int) -> int:
        """Return what a read that does not wait may bring. 0: note that the reader wants some.

        Args:
            reader: Who asks.
            in_hand: Messages that are running or waiting for a slot.
            store_now: How much of the store is worth filling at present.
        """
        under_way = _others(self._under_way, reader)
        free = min(self.slots + store_now - in_hand - under_way, self._free(reader, in_hand))
        others = [other for other in self._wanting if other is not reader]
        ahead = others if reader not in self._wanting else others[: list(self._wanting).index(reader)]
        share = free // (len(others) + 1) or int(free > len(ahead))
        if share <= 0:
            self._wanting.setdefault(reader)
            return 0
        return share

    def for_waiting(self, reader: object, in_hand: int) -> int:
        """Return what a read that waits may bring; 0 if all is set aside."""
        free = self._free(reader, in_hand)
        if self._readers == 1:
            return free
        return max(0, min(free, max(1, self._store // self._readers)))

    def set_aside(self, reader: object, count: int, *, waiting: bool) -> None:
        """A read goes out that may bring so many."""
        self.release(reader)
        self._wanting.pop(reader, None)
        (self._waiting if waiting else self._under_way)[reader] = count

    def release(self, reader: object) -> None:
        """The read is back, and what it brought is in hand."""
        self._under_way.pop(reader, None)
        self._waiting.pop(reader, None)

    def leave(self, reader: object) -> None:
        """The reader fetches no more."""
        self.release(reader)
        self._wanting.pop(reader, None)

    def _free(self, reader: object, in_hand: int) -> int:
        aside = _others(self._under_way, reader) + _others(self._waiting, reader)
        return self.slots + self._store - in_hand - aside


def _others(by_reader: dict[object, int], reader: object) -> int:
    return sum(by_reader.values()) - by_reader.get(reader, 0)
