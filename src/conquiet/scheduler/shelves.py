"""What one host knows about one stream's entries, and whether it leaves them alone for a moment. No I/O."""

from dataclasses import dataclass, field

from conquiet.kernel.backoff import Backoff
from conquiet.scheduler.catch_up import Plan
from conquiet.scheduler.ledger import NO_MARK, Mark, Record

_MS = 1_000
PATIENCE = Backoff(base_s=0.05, factor=2.0, cap_s=0.8, jitter=0.5)
"""Capped below a second: when the server (or a stream) is well again, a tick waits no longer than that."""
_LONGEST_HOLD_MS = 1_000


@dataclass(slots=True)
class Shelf:
    """The entries of one stream, and when each has to be looked at. Times in ms by the server's clock."""

    mark: Mark = NO_MARK
    records: dict[str, Record] = field(default_factory=dict)
    wake_at: dict[str, int] = field(default_factory=dict)
    refusals: int = 0
    _held_until: int = 0

    def hold(self, now: int) -> None:
        """Leave the stream alone for a moment: the server refused something about it."""
        self.refusals += 1
        self._held_until = now + max(1, round(PATIENCE.delay_s(self.refusals) * _MS))

    def release(self) -> None:
        """Take note that the server did as it was asked."""
        self.refusals = self._held_until = 0

    def due(self, now: int) -> list[str]:
        """Return the names of the entries to plan now."""
        return [] if self._is_held(now) else [name for name, at in self.wake_at.items() if at <= now]

    def next_wake(self, now: int) -> int | None:
        """Return when there is something to do next, None if never."""
        upcoming = min(self.wake_at.values(), default=None)
        return upcoming if upcoming is None or not self._is_held(now) else max(upcoming, self._held_until)

    def note(self, name: str, planned: Plan) -> None:
        """Remember when the plan wants to be made again."""
        if planned.wake_at is None:
            del self.wake_at[name]
        else:
            self.wake_at[name] = planned.wake_at

    def _is_held(self, now: int) -> bool:
        # Not longer than a moment, also when the server's clock was set back.
        return 0 < self._held_until - now <= _LONGEST_HOLD_MS
