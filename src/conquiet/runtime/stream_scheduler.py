"""Divide a read between streams. Pure.

COUNT of XREADGROUP counts per stream, so one command over all streams takes ``capacity / streams`` from each.
That starves no stream, but with one full stream among a hundred empty streams it would fetch a hundredth of
the capacity. So streams that filled their share last time ("hot") are read by a separate command for three quarters of
the capacity, and the others for the rest, in the same write.

While a stream of a higher level is hot, all streams of lower levels together get a quarter of the read entries. A
engine with one free worker cannot divide it, so the quarter is a balance across reads: every entry read adds a
quarter, every entry from a lower stream costs one. The ratio is the same at concurrency 1 and at 50.

See docs/decisions/0013.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_PARTS = 4
"""Streams of lower levels get 1/4 of the read entries."""

_WORTHWHILE = 16
"""Minimum number of entries to read from a full stream."""


class ReadRequest(NamedTuple):
    """One XREADGROUP of these streams with COUNT ``each``."""

    streams: tuple[str, ...]
    each: int


class StreamScheduler:
    """Tracks which streams were served last and which were full. Makes no call."""

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
        """True if a stream returned its full share last time, so it probably has more entries."""
        return bool(self._hot)

    @property
    def all_were_empty(self) -> bool:
        """True once every stream was read without result since the last message."""
        return len(self._empty) == len(self._order)

    def plan(self, capacity: int) -> list[ReadRequest]:
        """Divide ``capacity`` (1 or more) between streams. The requests together never exceed it."""
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
        """Divide three to one between full streams and streams of the same or a higher level that were not full."""
        if not capacity:
            return []
        if not hot:
            return [_share(others, capacity)]
        if not others:
            return [_share(_few(hot, capacity), capacity)]
        if capacity == 1:
            # One worker: alternate between a full stream and one of the others.
            self._others_turn = not self._others_turn
            return [ReadRequest(((others if self._others_turn else hot)[0],), 1)]
        rest = _share(others, max(1, capacity // 4))
        left = capacity - _most([rest])
        return [_share(_few(hot, left), left), rest]

    def _plan_lower(self, lower: Sequence[str], capacity: int) -> list[ReadRequest]:
        """Spend the balance of the lower levels: one entry in four."""
        if not lower:
            self._balance = 0
            return []
        share = min((self._balance + capacity) // _PARTS, capacity)
        if share < 1:
            return []
        full = [stream for stream in lower if stream in self._hot]
        quiet = [stream for stream in lower if stream not in self._hot]
        self._lower_turns += 1
        # Prefer streams known to be full, or the share would go to empty streams. Every fourth time read the others.
        look = quiet and (not full or self._lower_turns % _PARTS == 0)
        return [_share(quiet if look else _few(full, share), share)]

    def plan_wait(self, capacity: int) -> ReadRequest:
        """Return the blocking request for empty streams: all streams, or as many as ``capacity`` allows."""
        request = _share(self._order, capacity)
        self._rotate(set(request.streams))
        return request

    def record(self, requests: Sequence[ReadRequest], found: Mapping[str, int]) -> None:
        """Record the number of entries that the requests returned."""
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
                    # Reading an empty stream costs its share, or it would be repeated immediately. It costs nothing if
                    # a lower stream is known to be full, which gets the share next.
                    self._balance -= _PARTS * (count if lower_is_full else request.each)
        # Lower streams do not accumulate a share that they had no entries for.
        self._balance = min(self._balance, 2 * _PARTS - 1)

    def _favoured(self) -> list[str]:
        """Return the full streams of the highest level that has any, longest unserved first."""
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
    # Two entries from each of a hundred full streams would cost a hundred XACKs. Many entries from a few streams,
    # round-robin, serve all streams just as well.
    return full[: max(1, capacity // _WORTHWHILE)]


def _most(requests: Sequence[ReadRequest]) -> int:
    return sum(len(request.streams) * request.each for request in requests)


def _share(streams: Sequence[str], capacity: int) -> ReadRequest:
    if capacity < len(streams):
        return ReadRequest(tuple(streams[:capacity]), 1)
    return ReadRequest(tuple(streams), capacity // len(streams))


def prefetch_now(average_s: float, concurrency: int, limit: int, *, horizon_s: float = 0.05) -> int:
    """Return how many messages to hold beyond the free workers: as many as start within the horizon.

    An idle host cannot read a message that is held here. With handlers of a second nothing is prefetched; with handlers
    of microseconds the prefetch saves a round trip for each.
    """
    if average_s <= 0.0:
        return limit
    return min(limit, int(concurrency * horizon_s / average_s))
