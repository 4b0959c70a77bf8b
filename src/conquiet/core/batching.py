"""Gather items into batches by size and by the waiting time of the first item.

    add ──▶ gathering, by key ──┬─ full ──────────────────────────────────────────▶ deliver
                                └─ the first item has waited long enough ──▶ due ──▶ deliver, once ``may_deliver``

A due batch is delivered when a worker is free and gathers more items until then. Delivering it while all workers are
busy would only make it smaller.

``within_s`` is the deadline from the arrival of the first item to the end of its batch, usually the COMMIT. The
gathering time is therefore ``within_s`` minus the recent batch duration (``BatchTimes``).
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from conquiet.core.validation import require_positive, require_seconds
from conquiet.errors import ConfigurationError

T = TypeVar("T")

LARGEST = 10_000
"""Largest allowed batch size."""
WITHIN_S = 0.02
"""Default deadline for the effect of the first member of a batch."""
KEPT = 20
"""Number of recent batch durations that are kept."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Batch size and deadline of a handler.

    Attributes:
        size: Maximum number of members.
        within_s: Deadline, in seconds, from the arrival of the first member to the end of its batch. The gathering time
            is this minus the longest duration of the last 20 batches, but at least half of this. 0 takes only members
            that were read together.
    """

    size: int
    within_s: float = WITHIN_S

    def __post_init__(self) -> None:
        require_positive("batch", self.size, most=LARGEST)
        require_seconds("within_s", self.within_s, zero_allowed=True)

    def size_at(self, delivery_count: int) -> int:
        """Return the batch size for a delivery count: halved for each earlier delivery, at least 1.

        A message that kills its process is in a smaller batch each time, and finally alone.
        """
        return max(1, self.size >> (delivery_count - 1))


def batch_settings(batch: int | None, within_s: float | None) -> BatchSettings | None:
    """Return the settings for the arguments ``batch`` and ``within_s`` of a handler. None if it takes no batches.

    Raises:
        ConfigurationError: An argument is invalid, or ``within_s`` was passed without ``batch``.
    """
    if batch is None:
        if within_s is not None:
            raise ConfigurationError("within_s is how long a batch is gathered: give batch=… too")
        return None
    return BatchSettings(batch) if within_s is None else BatchSettings(batch, within_s)


class BatchTimes:
    """Durations of recent batches, from the end of gathering to the end of the batch. Pure."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=KEPT)

    def record(self, took_s: float) -> None:
        """Record the duration of a batch."""
        self._last.append(took_s)

    def gathering_s(self, within_s: float) -> float:
        """Return the gathering time of a batch with this deadline.

        At least half of ``within_s``: if handlers take longer than that, a shorter gathering time would make batches
        small and still miss the deadline.
        """
        return max(within_s - max(self._last), within_s / 2) if self._last else within_s


@dataclass(slots=True)
class _Gathering(Generic[T]):
    """The gathered items of one key."""

    timer: asyncio.TimerHandle
    items: list[T] = field(default_factory=list)


class BatchAssembler(Generic[T]):
    """Gathers items by key. Belongs to one event loop.

    Args:
        deliver: Called with the key, the items of a batch, and when it was due on the loop's clock (None if it was
            full before).
        may_deliver: Returns True if a partial batch may be delivered now, because a worker is free.
    """

    def __init__(
        self, deliver: Callable[[Hashable, list[T], float | None], None], may_deliver: Callable[[], bool]
    ) -> None:
        self._deliver = deliver
        self._may_deliver = may_deliver
        self._times: defaultdict[Hashable, BatchTimes] = defaultdict(BatchTimes)
        self._gathering: dict[Hashable, _Gathering[T]] = {}
        self._due: dict[Hashable, None] = {}  # in the order in which they became due

    def __len__(self) -> int:
        """Number of gathered items."""
        return sum(len(one.items) for one in self._gathering.values())

    def add(self, key: Hashable, item: T, *, size: int, within_s: float) -> None:
        """Add an item to the batch of a key. ``size`` must be the same for all items of a key."""
        self.add_many(key, [item], size=size, within_s=within_s)

    def add_many(self, key: Hashable, items: list[T], *, size: int, within_s: float) -> None:
        """Add items to the batch of a key, and to further batches once it is full."""
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
        """Deliver due batches while ``may_deliver`` returns True."""
        # Durations count from now: the wait for a free worker must not shorten the gathering time.
        while self._due and self._may_deliver():
            self._send(next(iter(self._due)), asyncio.get_running_loop().time())

    def ended(self, key: Hashable, due_at: float | None) -> None:
        """Record the end of a batch. Takes the arguments of ``deliver`` without the items."""
        if due_at is not None:  # the duration of a full batch does not apply to partial batches
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
            # The time of the timer: the delay of a slow loop counts, because the loop will be slow again.
            self._send(key, self._gathering[key].timer.when())

    def _send(self, key: Hashable, due_at: float | None) -> None:
        gathering = self._gathering.pop(key)
        gathering.timer.cancel()
        self._due.pop(key, None)
        self._deliver(key, gathering.items, due_at)
