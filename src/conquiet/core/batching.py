"""Gather items into batches: by size, and by the time that the first one waits.

    add ──▶ gathering, by key ──┬─ full ──────────────────────────────────────────▶ deliver
                                └─ the first one has waited long enough ───▶ due ──▶ deliver, once ``may_deliver``

A batch whose time is over is delivered when a worker is free, and goes on gathering until then: while all workers are
busy, delivering it earlier would only make it smaller.

``within_s`` is the time from the arrival of the first one to the end of its batch, its COMMIT. So a batch gathers for a
shorter time: less by as long as the last batches took (``BatchTimes``).
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from conquiet.core.validation import require_positive, require_seconds
from conquiet.errors import ConfigurationError

T = TypeVar("T")

LARGEST = 10_000
"""Most members of a batch."""
WITHIN_S = 0.02
"""Within which time the first member of a batch has its effect, unless another time is given."""
KEPT = 20
"""Batches whose duration is remembered."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How batches of a handler are gathered.

    Attributes:
        size: Most members.
        within_s: Within which time the first member has its effect, in seconds: it waits for others, but less by as
            long as the longest of the last 20 batches took, and at least half of this. 0 takes what was read together.
    """

    size: int
    within_s: float = WITHIN_S

    def __post_init__(self) -> None:
        if require_positive("batch", self.size) > LARGEST:
            raise ConfigurationError(f"batch must be at most {LARGEST}, got {self.size}")
        require_seconds("within_s", self.within_s, zero_allowed=True)

    def size_at(self, delivery_count: int) -> int:
        """Return the largest batch for a message that was delivered so often: half of the one before, at least 1.

        A message that kills its process is in a batch of half the size each time, and soon alone.
        """
        return max(1, self.size >> (delivery_count - 1))


def batch_settings(batch: int | None, within_s: float | None) -> BatchSettings | None:
    """Return the settings for the arguments ``batch`` and ``within_s`` of a handler; None for no batches.

    Raises:
        ConfigurationError: One is wrong, or ``within_s`` came without ``batch``.
    """
    if batch is None:
        if within_s is not None:
            raise ConfigurationError("within_s is how long a batch is gathered: give batch=… too")
        return None
    return BatchSettings(batch) if within_s is None else BatchSettings(batch, within_s)


class BatchTimes:
    """How long the last batches took, from the end of their gathering to their own end. Pure."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=KEPT)

    def record(self, took_s: float) -> None:
        """Note how long a batch took."""
        self._last.append(took_s)

    def gathering_s(self, within_s: float) -> float:
        """Return how long a batch gathers that is to end within this time.

        At least half of it: where handlers take longer than that, gathering nothing would make the batches small, and
        still be too late.
        """
        return max(within_s - max(self._last), within_s / 2) if self._last else within_s


class _Gathering(Generic[T]):
    """The items of one key that wait for their batch."""

    __slots__ = ("items", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.items: list[T] = []
        self.timer = timer


class BatchAssembler(Generic[T]):
    """Gathers items by key. Belongs to one event loop.

    Args:
        deliver: Called with the key and the items of a batch, and when it was due, on the loop's clock; None if it
            was full before that.
        may_deliver: Whether a batch that is not full may be delivered now: a worker is free.
    """

    def __init__(
        self, deliver: Callable[[Hashable, list[T], float | None], None], may_deliver: Callable[[], bool]
    ) -> None:
        self._deliver = deliver
        self._may_deliver = may_deliver
        self._times: defaultdict[Hashable, BatchTimes] = defaultdict(BatchTimes)
        self._gathering: dict[Hashable, _Gathering[T]] = {}
        self._due: dict[Hashable, None] = {}  # in the order in which their time was over

    def __len__(self) -> int:
        """Items that wait for their batch."""
        return sum(len(one.items) for one in self._gathering.values())

    def add(self, key: Hashable, item: T, *, size: int, within_s: float) -> None:
        """Add an item to the batch of a key. ``size`` is the same for all items of it."""
        self.add_many(key, [item], size=size, within_s=within_s)

    def add_many(self, key: Hashable, items: list[T], *, size: int, within_s: float) -> None:
        """Add items to the batch of a key, and to those after it once it is full."""
        added = 0
        while added < len(items):
            gathering = self._gathering.get(key)
            if gathering is None:
                wait_s = self._times[key].gathering_s(within_s)
                timer = asyncio.get_running_loop().call_later(wait_s, self._expired, key)
                gathering = self._gathering[key] = _Gathering(timer)
            some = items[added : added + size - len(gathering.items)]
            gathering.items += some
            added += len(some)
            if len(gathering.items) >= size:
                self._send(key, None)

    def deliver_due(self) -> None:
        """Deliver batches whose time is over, as long as they may be."""
        # Since now: that no worker was free before is no reason to gather for a shorter time.
        while self._due and self._may_deliver():
            self._send(next(iter(self._due)), asyncio.get_running_loop().time())

    def ended(self, key: Hashable, due_at: float | None) -> None:
        """Note that a batch has ended just now: what ``deliver`` was called with, without the items."""
        if due_at is not None:  # how long a full one took says nothing about those that wait
            self._times[key].record(asyncio.get_running_loop().time() - due_at)

    def take(self) -> list[T]:
        """Remove and return all items."""
        items = [item for one in self._gathering.values() for item in one.items]
        for one in self._gathering.values():
            one.timer.cancel()
        self._gathering.clear()
        self._due.clear()
        return items

    def _expired(self, key: Hashable) -> None:
        if self._due or not self._may_deliver():
            self._due[key] = None
            self.deliver_due()
        else:
            self._send(key, self._gathering[key].timer.when())  # a loop that is late here is late the next time, too

    def _send(self, key: Hashable, due_at: float | None) -> None:
        gathering = self._gathering.pop(key)
        gathering.timer.cancel()
        self._due.pop(key, None)
        self._deliver(key, gathering.items, due_at)
