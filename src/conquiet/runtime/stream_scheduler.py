"""How a read is shared between streams. Pure.

COUNT of XREADGROUP counts per stream, so one command over all streams takes ``capacity / streams`` from each.
That starves no stream, but with one full stream among a hundred empty ones it would fetch a hundredth of
the capacity. So streams that filled their share last time ("hot") are read by a command of
their own for three quarters of the capacity, and the others for the rest, in the same write.

While a stream of a higher level is hot, all streams of lower levels together get a quarter of what is read. A worker
with one free slot cannot share that slot, so the quarter is a balance kept from read to read: every entry read adds a
quarter, every entry from a lower stream costs one. The ratio is the same at concurrency 1 and at 50.

See docs/decisions/0049.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_PARTS = 4
"""Streams of lower levels get one part of so many."""

_WORTHWHILE = 16
"""Entries to read at least from a stream that has plenty."""


class ReadRequest(NamedTuple):
    """One XREADGROUP: these streams, at most so many entries from each."""

    streams: tuple[str, ...]
    each: int


class StreamScheduler:
    """Remembers which streams were served last and which were full. Makes no call."""

    def __init__(self, streams: Sequence[str], priorities: Mapping[str, int] | None = None) -> None:
        self._order = list(streams)
        self._level = dict(priorities or {})
        self._hot: set[str] = set()
        self._empty: set[str] = set()
        self._others_turn = False
        self._balance = 0
        self._lower_turns = 0

    @property
    def any_full(self) -> bool:
        """True if a stream filled its share last time: there is more where that came from."""
        return bool(self._hot)

    @property
    def all_were_empty(self) -> bool:
        """True once every stream has been asked since the last message and had nothing."""
        return len(self._empty) == len(self._order)

    def plan(self, capacity: int) -> list[ReadRequest]:
        """Share ``capacity`` (1 or more) out. The sum of what the requests may bring is never above it."""
        if len(self._order) == 1:
            return [ReadRequest((self._order[0],), capacity)]
        hot = self._favoured()
        top = self._level.get(hot[0], 0) if hot else 0
        lower = [stream for stream in self._order if hot and self._level.get(stream, 0) < top]
        below = self._plan_lower(lower, capacity)
        left = capacity - _most(below)
        peers = [stream for stream in self._order if stream not in hot and stream not in lower]
        requests = [*self._plan_level(hot, peers, left), *below]
        self._rotate({stream for request in requests for stream in request.streams})
        return requests

    def _plan_level(self, hot: Sequence[str], others: Sequence[str], capacity: int) -> list[ReadRequest]:
        """Share between the full streams and those of their level or above that were not full: three to one."""
        if not capacity:
            return []
        if not hot:
            return [_share(others, capacity)]
        if not others:
            return [_share(_few(hot, capacity), capacity)]
        if capacity == 1:
            # One slot: a full stream and one of the others in turn.
            self._others_turn = not self._others_turn
            return [ReadRequest(((others if self._others_turn else hot)[0],), 1)]
        rest = _share(others, max(1, capacity // 4))
        left = capacity - _most([rest])
        return [_share(_few(hot, left), left), rest]

    def _plan_lower(self, lower: Sequence[str], capacity: int) -> list[ReadRequest]:
        """Spend what lower levels have saved up: one entry in four."""
        if not lower:
            self._balance = 0
            return []
        share = min((self._balance + capacity) // _PARTS, capacity)
        if share < 1:
            return []
        full = [stream for stream in lower if stream in self._hot]
        quiet = [stream for stream in lower if stream not in self._hot]
        self._lower_turns += 1
        # Streams known to be full, else the share would go to empty ones; every fourth time the others are asked.
        look = quiet and (not full or self._lower_turns % _PARTS == 0)
        return [_share(quiet if look else _few(full, share), share)]

    def plan_wait(self, capacity: int) -> ReadRequest:
        """Return the one request to wait with when all streams are empty: all streams, if there is capacity for all."""
        request = _share(self._order, capacity)
        self._rotate(set(request.streams))
        return request

    def record(self, requests: Sequence[ReadRequest], found: Mapping[str, int]) -> None:
        """Record what the requests have brought."""
        for request in requests:
            for stream in request.streams:
                count = found.get(stream, 0)
                if count:
                    self._empty.clear()
                if count >= request.each:
                    self._hot.add(stream)
                else:
                    self._hot.discard(stream)
        self._record_balance(requests, found)
        self._empty.update(stream for request in requests for stream in request.streams if not found.get(stream, 0))

    def _record_balance(self, requests: Sequence[ReadRequest], found: Mapping[str, int]) -> None:
        hot = self._favoured()
        if not hot:
            return
        top = self._level.get(hot[0], 0)
        lower_is_full = any(self._level.get(stream, 0) < top for stream in self._hot)
        for request in requests:
            for stream in request.streams:
                count = found.get(stream, 0)
                self._balance += count
                if self._level.get(stream, 0) < top:
                    # Asking an empty stream costs its share, or it would be repeated at once. It costs nothing if a
                    # lower stream is known to be full, which has the share next.
                    self._balance -= _PARTS * (count if lower_is_full else request.each)
        # What lower streams could not use for want of entries is not owed to them later.
        self._balance = min(self._balance, 2 * _PARTS - 1)

    def _favoured(self) -> list[str]:
        """The full streams of the highest level that has one, longest unserved first."""
        if not self._hot:
            return []
        top = max(self._level.get(stream, 0) for stream in self._hot)
        return [stream for stream in self._order if stream in self._hot and self._level.get(stream, 0) == top]

    def _rotate(self, served: set[str]) -> None:
        if len(served) == len(self._order):
            self._order.append(self._order.pop(0))
        else:
            waiting = [stream for stream in self._order if stream not in served]
            self._order = waiting + [stream for stream in self._order if stream in served]


def _few(full: Sequence[str], capacity: int) -> Sequence[str]:
    # Two entries from each of a hundred full streams would cost a hundred XACKs; many from a few, in turn,
    # serve all streams just as well.
    return full[: max(1, capacity // _WORTHWHILE)]


def _most(requests: Sequence[ReadRequest]) -> int:
    return sum(len(request.streams) * request.each for request in requests)


def _share(streams: Sequence[str], capacity: int) -> ReadRequest:
    if capacity < len(streams):
        return ReadRequest(tuple(streams[:capacity]), 1)
    return ReadRequest(tuple(streams), capacity // len(streams))


def prefetch_now(average_s: float, concurrency: int, limit: int, *, horizon_s: float = 0.05) -> int:
    """How many messages beyond the free slots are worth holding: those that start within the horizon.

    A message that is held here cannot be read by an idle host. With handlers of a second nothing is
    prefetched; with handlers of microseconds a round trip is saved for each.
    """
    if average_s <= 0.0:
        return limit
    return min(limit, int(concurrency * horizon_s / average_s))
