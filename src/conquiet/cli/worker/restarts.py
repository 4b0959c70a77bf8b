"""Decide when a process that ended is restarted, and when the supervisor gives up. Pure."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from conquiet.cli.errors import NOT_DONE
from conquiet.core.backoff import Backoff

_BACKOFF = Backoff(base_s=0.2, factor=2.0, cap_s=10.0, jitter=0.3)
_RECHECK_S = 0.5
SIGNALLED = 143
"""Exit code after a graceful stop by a signal: in good order, with more to do."""

ABANDONED = 70
"""Exit code after a stop that abandoned handlers at the end of the grace period."""

UNREACHABLE = 69
"""Exit code of a process that was never ready, because a server could not be reached."""

GRACEFUL_EXITS = frozenset({0, SIGNALLED})
CRASHES = 5
WINDOW_S = 60.0


class RestartAction(Enum):
    """The reaction to a process that ended without a request."""

    RESTART = "restart"
    REPLACE = "replace"  # it was drained for a fresh one
    FINISHED = "finished"  # its workers have nothing more to do
    GIVE_UP = "give up"  # it crashes again and again
    CANNOT_START = "cannot start"  # a restart would change nothing
    WAIT = "wait"  # restart it: a server cannot be reached yet
    UNREACHABLE = "unreachable"  # the wait for that server is over


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, and the delay before it."""

    action: RestartAction
    delay_s: float = 0.0


class RestartPolicy:
    """Remembers the crashes of one process and of its replacements.

    Args:
        wait_s: How long to wait for a server that cannot be reached at the start. An exit for this reason is not a
            crash.

    A crash loop is ``CRASHES`` crashes within ``WINDOW_S``: then the fault does not pass, and a supervisor that
    restarts without end hides it from the monitoring.
    """

    def __init__(self, wait_s: float = 0.0) -> None:
        self._crashes: deque[float] = deque(maxlen=CRASHES)
        self._wait_s = wait_s
        self._waiting_since_s: float | None = None

    def decide(self, exit_code: int, now_s: float) -> Decision:
        """Return what to do about a process with this exit code (negative: killed by a signal)."""
        if exit_code == UNREACHABLE:
            return self._wait(now_s)
        self._waiting_since_s = None
        if exit_code == 0:
            return Decision(RestartAction.FINISHED)
        if exit_code == NOT_DONE:
            return Decision(RestartAction.CANNOT_START)
        # For example by a watchdog: no crash, and the process is still needed.
        if exit_code in {SIGNALLED, ABANDONED}:
            return Decision(RestartAction.RESTART, _BACKOFF.delay_s(1))
        self._crashes.append(now_s)
        if len(self._crashes) == CRASHES and now_s - self._crashes[0] < WINDOW_S:
            return Decision(RestartAction.GIVE_UP)
        recent = sum(now_s - crash < WINDOW_S for crash in self._crashes)
        return Decision(RestartAction.RESTART, _BACKOFF.delay_s(recent))

    def _wait(self, now_s: float) -> Decision:
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        if now_s - self._waiting_since_s >= self._wait_s:
            return Decision(RestartAction.UNREACHABLE)
        return Decision(RestartAction.WAIT, _RECHECK_S)
