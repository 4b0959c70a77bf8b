"""Keep state between requests in this process: flash messages, peeked messages, growth of the inbox."""

import secrets
import time
from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_MOST: Final = 200
_SAMPLES: Final = 720


class PageCache(Generic[T]):
    """Holds the newest 200 values under unguessable names. A value in a URL could be set by any page."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, T] = OrderedDict()

    def add(self, value: T) -> str:
        """Store a value and return its name."""
        name = secrets.token_urlsafe(8)
        self._kept[name] = value
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> T | None:
        """Return the value; None if it was dropped."""
        return self._kept.get(name)


class GrowthRate:
    """Growth of a table, computed from the row counts that pages have read within the last hour."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def record(self, rows: int, *, complete: bool) -> float | None:
        """Add a count and return rows per minute; None before two seconds, or if not all rows were counted."""
        if not complete:
            self._samples.clear()
            return None
        now = time.monotonic()
        self._samples.append((now, rows))
        while now - self._samples[0][0] > 3600:  # noqa: PLR2004 - an hour
            self._samples.popleft()
        first_at, first = self._samples[0]
        return None if now - first_at < 2 else (rows - first) / (now - first_at) * 60  # noqa: PLR2004
