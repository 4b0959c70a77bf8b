"""The entries of one stream as one host knows them, and the backoff after a refusal. No I/O."""

from dataclasses import dataclass, field

from conquiet.core.backoff import Backoff
from conquiet.scheduler.schedule_store import NO_VERSION, Record, Version

_MS = 1_000
RETRY_BACKOFF = Backoff(base_s=0.05, factor=2.0, cap_s=0.8, jitter=0.5)
"""Capped below a second: once the server (or a stream) is available again, a tick waits no longer than that."""
_LONGEST_BACKOFF_MS = 1_000


@dataclass(slots=True)
class StreamState:
    """The entries of one stream, and when to plan each of them. Times in ms by the server's clock."""

    version: Version = NO_VERSION
    records: dict[str, Record] = field(default_factory=dict)
    wake_at: dict[str, int] = field(default_factory=dict)
    refusals: int = 0
    _skipped_until: int = 0

    def back_off(self, now: int) -> None:
        """Skip the stream for a moment: the server refused a command about it."""
        self.refusals += 1
        self._skipped_until = now + max(1, round(RETRY_BACKOFF.delay_s(self.refusals) * _MS))

    def reset_backoff(self) -> None:
        """Forget refusals: the server accepted a command."""
        self.refusals = self._skipped_until = 0

    def due(self, now: int) -> list[str]:
        """Return the names of the entries to plan now."""
        return [] if self._is_skipped(now) else [name for name, at in self.wake_at.items() if at <= now]

    def next_wake(self, now: int) -> int | None:
        """Return when to plan next, None if never."""
        upcoming = min(self.wake_at.values(), default=None)
        return upcoming if upcoming is None or not self._is_skipped(now) else max(upcoming, self._skipped_until)

    def schedule(self, name: str, wake_at: int | None) -> None:
        """Set when to plan an entry again; None for never."""
        if wake_at is None:
            del self.wake_at[name]
        else:
            self.wake_at[name] = wake_at

    def _is_skipped(self, now: int) -> bool:
        # Not longer than this, even if the server's clock was set back.
        return 0 < self._skipped_until - now <= _LONGEST_BACKOFF_MS
