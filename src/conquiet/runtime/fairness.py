"""Whose turn it is: how a read is shared out between streams. Pure.

COUNT of XREADGROUP counts per stream, so one command over all streams takes ``room / streams`` from each.
That starves nobody, but with one full stream among a hundred empty ones it would fetch a hundredth of
what there is room for. So streams that filled their share last time ("hot") are asked by a command of
their own for three quarters of the room, and the others for the rest, in the same write.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_WORTHWHILE = 16
"""Entries to take at least from a stream that has plenty."""


class Take(NamedTuple):
    """One XREADGROUP: these streams, at most so many entries from each."""

    streams: tuple[str, ...]
    each: int


class StreamRota:
    """Remembers who was served last and who was full. Makes no call."""

    def __init__(self, streams: Sequence[str], priorities: Mapping[str, int] | None = None) -> None:
        self._order = list(streams)
        self._level = dict(priorities or {})
        self._hot: set[str] = set()
        self._empty: set[str] = set()
        self._others_turn = False

    @property
    def anybody_full(self) -> bool:
        """True if a stream filled its share last time: there is more where that came from."""
        return bool(self._hot)

    @property
    def all_were_empty(self) -> bool:
        """True once every stream has been asked since the last message and had nothing."""
        return len(self._empty) == len(self._order)

    def plan(self, room: int) -> list[Take]:
        """Share ``room`` (1 or more) out. The sum of what the takes may bring is never above it."""
        if len(self._order) == 1:
            return [Take((self._order[0],), room)]
        hot = self._favoured()
        cold = [stream for stream in self._order if stream not in hot]
        if not hot:
            takes = [_share(cold, room)]
        elif not cold:
            takes = [_share(_few(hot, room), room)]
        elif room == 1:
            # One slot: a full stream and one of the others in turn.
            self._others_turn = not self._others_turn
            takes = [Take(((cold if self._others_turn else hot)[0],), 1)]
        else:
            rest = _share(cold, max(1, room // 4))
            left = room - len(rest.streams) * rest.each
            takes = [_share(_few(hot, left), left), rest]
        self._rotate({stream for take in takes for stream in take.streams})
        return takes

    def plan_wait(self, room: int) -> Take:
        """The one command to wait with when nobody has anything: all streams, if there is room for all."""
        take = _share(self._order, room)
        self._rotate(set(take.streams))
        return take

    def note(self, takes: Sequence[Take], found: Mapping[str, int]) -> None:
        """Learn from what the takes brought."""
        for take in takes:
            for stream in take.streams:
                count = found.get(stream, 0)
                if count:
                    self._empty.clear()
                if count >= take.each:
                    self._hot.add(stream)
                else:
                    self._hot.discard(stream)
        self._empty.update(stream for take in takes for stream in take.streams if not found.get(stream, 0))

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


def _few(full: Sequence[str], room: int) -> Sequence[str]:
    # Two entries from each of a hundred full streams would cost a hundred XACKs; many from a few, in turn,
    # serve everybody just as well.
    return full[: max(1, room // _WORTHWHILE)]


def _share(streams: Sequence[str], room: int) -> Take:
    if room < len(streams):
        return Take(tuple(streams[:room]), 1)
    return Take(tuple(streams), room // len(streams))


def prefetch_now(average_s: float, concurrency: int, limit: int, *, horizon_s: float = 0.05) -> int:
    """How many messages beyond the free slots are worth holding: those that start within the horizon.

    What waits in our hands cannot be taken by an idle host. With handlers of a second nothing is
    prefetched; with handlers of microseconds a round trip is saved for each.
    """
    if average_s <= 0.0:
        return limit
    return min(limit, int(concurrency * horizon_s / average_s))
