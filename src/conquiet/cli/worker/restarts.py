"""When a process that ended is started again, and when the whole is given up. Pure."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from conquiet.cli.failures import NOT_DONE
from conquiet.kernel.backoff import Backoff

_BACKOFF = Backoff(base_s=0.2, factor=2.0, cap_s=10.0, jitter=0.3)
SIGNALLED = 143
"""A process ends so when a signal asked it to: in good order, but not because it had nothing more to do."""

GOOD_ENDS = frozenset({0, SIGNALLED})
CRASHES = 5
WINDOW_S = 60.0


class Next(Enum):
    """What to do about a process that ended by itself."""

    RESTART = "restart"
    FINISHED = "finished"  # it has done all it wanted
    GIVE_UP = "give up"  # it crashes again and again
    CANNOT_START = "cannot start"  # starting it again would change nothing


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and after how long."""

    next: Next
    delay_s: float = 0.0


class RestartPolicy:
    """Remembers the crashes of one process slot.

    A crash loop is ``CRASHES`` ends within ``WINDOW_S``: then the fault is not a passing one, and a
    supervisor that goes on for ever hides it from whoever watches the process.
    """

    def __init__(self) -> None:
        self._crashes: deque[float] = deque(maxlen=CRASHES)

    def decide(self, exit_code: int, now_s: float) -> Decision:
        """Return what to do about an end with this code (negative: by a signal)."""
        if exit_code == 0:
            return Decision(Next.FINISHED)
        if exit_code == NOT_DONE:
            return Decision(Next.CANNOT_START)
        if exit_code == SIGNALLED:  # by a watchdog, say: no crash, and no reason to go on with one process less
            return Decision(Next.RESTART, _BACKOFF.delay_s(1))
        self._crashes.append(now_s)
        if len(self._crashes) == CRASHES and now_s - self._crashes[0] < WINDOW_S:
            return Decision(Next.GIVE_UP)
        recent = sum(now_s - crash < WINDOW_S for crash in self._crashes)
        return Decision(Next.RESTART, _BACKOFF.delay_s(recent))
