"""Decide when a worker process is replaced: by handled messages, by memory, or by age.

One process is replaced at a time: the next is drained when the replacement of the last is ready. Limits differ by up
to a tenth from process to process, so that hosts that were started together do not recycle together.
"""

import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SPREAD = 0.1
_LEAST_AGE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecycleLimits:
    """Limits at which a process is replaced; 0: none.

    Attributes:
        max_messages: Messages handled.
        max_rss_mb: Resident memory, in MiB.
        max_age_s: Seconds since its start.
    """

    max_messages: int = 0
    max_rss_mb: int = 0
    max_age_s: float = 0

    @property
    def is_set(self) -> bool:
        """True if there is a limit."""
        return self != RecycleLimits()

    def is_below_start(self, first_rss_bytes: int, share: float = 1.0) -> bool:
        """Return whether a fresh process uses more memory than the limit: replacing it frees none."""
        return self.max_rss_mb > 0 and first_rss_bytes >= self.max_rss_mb * share * 2**20

    def reason(
        self, *, handled: int, rss_bytes: int, age_s: float, share: float = 1.0, first_rss_bytes: int = 0
    ) -> str:
        """Return which limit a process has reached, empty if none.

        Args:
            handled: Messages that it has handled.
            rss_bytes: Its memory.
            age_s: Its age.
            share: The part of each limit that is its own.
            first_rss_bytes: Its memory when it became ready. If that is above the limit, memory is a reason at most
                once a minute: otherwise the worker would only restart.
        """
        if self.max_messages and handled >= self.max_messages * share:
            return f"has handled {handled} messages"
        is_fresh = self.is_below_start(first_rss_bytes, share) and age_s < _LEAST_AGE_S
        if self.max_rss_mb and rss_bytes >= self.max_rss_mb * share * 2**20 and not is_fresh:
            return f"uses {rss_bytes // 2**20} MiB"
        if self.max_age_s and age_s >= self.max_age_s * share:
            return f"is {age_s:.0f} s old"
        return ""


def draw_share() -> float:
    """Return the part of the limits that holds for one process."""
    return random.uniform(1 - _SPREAD, 1.0)  # noqa: S311 - spreads load, and protects nothing


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended, or the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        pass
    try:  # without /proc: macOS, BSD
        command = ["ps", "-o", "rss=", "-p", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
        return int(done.stdout.strip() or 0) * 1024
    except (OSError, ValueError):
        return 0
