"""When to claim stale entries, and at which cursor to continue. Pure: the reader makes the calls.

While there is no new work, every second round claims as long as there are stale entries. Under load it is every fourth:
otherwise constant load would starve stale messages.
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
        interval_s: Time between two scans of one stream, spread by half of it either way: hosts that started
            together should not claim together.
        rand: Source of numbers in [0, 1).
    """

    def __init__(self, streams: Sequence[str], interval_s: float, *, rand: Callable[[], float] = random.random) -> None:
        self._interval_s = interval_s
        self._rand = rand
        self._cursor = dict.fromkeys(streams, START)
        # The first one comes soon: after a crash, stale work is what a new process is for.
        self._next = {stream: interval_s * rand() * 0.5 for stream in streams}
        self._has_begun = False
        self._rounds_since_claim = _BUSY_ROUNDS

    def due(self, now: float, capacity: int, *, idle: bool) -> dict[str, int]:
        """Return the streams to claim from in this round and how many entries each may bring, within the capacity.

        Args:
            now: The monotonic clock.
            capacity: How many messages may be taken.
            idle: The last read for new entries brought nothing.
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
        """Seconds until some stream is due; 0 if one is. Asked for after the first ``due``."""
        return max(0.0, min(self._next.values()) - now)

    def cursor(self, stream: str) -> str:
        """Return where to continue."""
        return self._cursor[stream]

    def record(self, stream: str, cursor: str, now: float) -> None:
        """Record how far a claim came. A cursor at the start means that the whole list was seen; else it goes on."""
        self._cursor[stream] = cursor
        self._next[stream] = now + self._interval_s * (0.5 + self._rand()) if cursor == START else now

    def postpone(self, stream: str, now: float) -> None:
        """Claim from this stream later: it is paused now. Its cursor stays."""
        self._next[stream] = now + self._interval_s


def after(message_id: str) -> str:
    """Return the id right behind this one, for servers that know no exclusive ranges (before 6.2)."""
    milliseconds, _, sequence = message_id.partition("-")
    return f"{milliseconds}-{int(sequence or 0) + 1}"
