"""When to look for stale work, and where the last look ended. Pure: the reader makes the calls.

While there is no new work, every second turn looks for stale work as long as there is some. Under load it
is every fourth: otherwise constant load would leave stale messages lying for ever.
"""

import random
from collections.abc import Callable, Sequence

START = "0-0"
_IDLE_TURNS = 2
_BUSY_TURNS = 4


class StealSchedule:
    """Per stream: the cursor of XAUTOCLAIM and the time of the next look.

    Args:
        streams: Where to look.
        interval_s: Time between two looks at one stream, spread by half of it either way: hosts that
            started together should not look together.
        rand: Source of numbers in [0, 1).
    """

    def __init__(self, streams: Sequence[str], interval_s: float, *, rand: Callable[[], float] = random.random) -> None:
        self._interval_s = interval_s
        self._rand = rand
        self._cursor = dict.fromkeys(streams, START)
        # The first look comes soon: after a crash stale work is what a new process is there for.
        self._next = {stream: interval_s * rand() * 0.5 for stream in streams}
        self._has_begun = False
        self._turns_since_look = _BUSY_TURNS

    def due(self, now: float, room: int, *, idle: bool) -> dict[str, int]:
        """Return the streams to look at in this turn and how many entries each may bring, within the room.

        Args:
            now: The monotonic clock.
            room: How many messages may be taken.
            idle: The last read for new entries brought nothing.
        """
        if not self._has_begun:
            self._has_begun = True
            self._next = {stream: now + wait for stream, wait in self._next.items()}
        self._turns_since_look += 1
        if now < min(self._next.values()) or self._turns_since_look < (_IDLE_TURNS if idle else _BUSY_TURNS):
            return {}
        self._turns_since_look = 0
        ready = sorted((at, stream) for stream, at in self._next.items() if at <= now)[:room]
        return {stream: room // len(ready) for _, stream in ready}

    def next_look(self, now: float) -> float:
        """Seconds until some stream is due; 0 if one is. Asked for after the first ``due``."""
        return max(0.0, min(self._next.values()) - now)

    def cursor(self, stream: str) -> str:
        """Where to go on."""
        return self._cursor[stream]

    def looked(self, stream: str, cursor: str, now: float) -> None:
        """Note how far a look came. A cursor at the start means that the whole list was seen; else it goes on."""
        self._cursor[stream] = cursor
        self._next[stream] = now + self._interval_s * (0.5 + self._rand()) if cursor == START else now

    def put_off(self, stream: str, now: float) -> None:
        """Look at this stream later: it is withheld now. Its cursor stays."""
        self._next[stream] = now + self._interval_s


def place_of(message_id: str) -> tuple[int, int]:
    """Return an id as something that sorts as the server does."""
    milliseconds, _, sequence = message_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def after(message_id: str) -> str:
    """Return the id right behind this one, for servers that know no exclusive ranges (before 6.2)."""
    milliseconds, _, sequence = message_id.partition("-")
    return f"{milliseconds}-{int(sequence or 0) + 1}"
