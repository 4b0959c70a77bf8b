"""Decide when to claim stale entries and at which cursor to continue. Pure: the reader makes the calls.

While there is no new work, every second round claims as long as there are stale entries. Under load every fourth round
claims; without that, constant load would starve stale messages.
"""

import random
from collections.abc import Callable, Sequence

START = "0-0"
_IDLE_ROUNDS = 2
_BUSY_ROUNDS = 4


class ClaimSchedule:
    """Per stream: the cursor of XAUTOCLAIM and the time of the next claim.

    Args:
        streams: The streams.
        interval_s: Time between two scans of one stream, jittered by ±50 % so that hosts that started together do not
            claim together.
        rand: Source of numbers in [0, 1).
    """

    def __init__(self, streams: Sequence[str], interval_s: float, *, rand: Callable[[], float] = random.random) -> None:
        self._interval_s = interval_s
        self._rand = rand
        self._cursor = dict.fromkeys(streams, START)
        # Scan soon after the start: a process that replaces a crashed one should find its stale messages.
        self._next = {stream: interval_s * rand() * 0.5 for stream in streams}
        self._has_begun = False
        self._rounds_since_claim = _BUSY_ROUNDS

    def due(self, now: float, capacity: int, *, idle: bool) -> dict[str, int]:
        """Return the streams to claim from in this round and the maximum number of entries of each.

        Args:
            now: The monotonic clock.
            capacity: Maximum number of messages over all streams.
            idle: The last read found no new entries.
        """
        if not self._has_begun:
            self._has_begun = True
            self._next = {stream: now + wait for stream, wait in self._next.items()}
        self._rounds_since_claim += 1
        if now < min(self._next.values()) or self._rounds_since_claim < (_IDLE_ROUNDS if idle else _BUSY_ROUNDS):
            return {}
        self._rounds_since_claim = 0
        ready = sorted((at, stream) for stream, at in self._next.items() if at <= now)[:capacity]
        return {stream: capacity // len(ready) for _, stream in ready}

    def next_due_s(self, now: float) -> float:
        """Return the seconds until the next stream is due, 0 if one is due now. Valid after the first ``due``."""
        return max(0.0, min(self._next.values()) - now)

    def cursor(self, stream: str) -> str:
        """Return the cursor to continue the scan at."""
        return self._cursor[stream]

    def record(self, stream: str, cursor: str, now: float) -> None:
        """Record the cursor after a claim. A cursor at the start means that the scan is complete."""
        self._cursor[stream] = cursor
        self._next[stream] = now + self._interval_s * (0.5 + self._rand()) if cursor == START else now

    def postpone(self, stream: str, now: float) -> None:
        """Delay the next claim from a paused stream. Its cursor is kept."""
        self._next[stream] = now + self._interval_s
