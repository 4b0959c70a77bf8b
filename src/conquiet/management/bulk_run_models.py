"""A bulk run: its action, filter, state and counters. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from conquiet.management.jobs.models import JobFilter
from conquiet.processor.dead_letters import DeadFilter


class RunState(StrEnum):
    """State of a run."""

    COUNTING = "counting"
    COUNTED = "counted"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


ACTIVE: Final = frozenset({RunState.COUNTING, RunState.RUNNING})
"""States in which a process must execute the run."""


class RunAction(StrEnum):
    """Action of a run: replay and discard apply to dead letters, cancel and run-now to jobs."""

    REPLAY = "replay"
    DISCARD = "discard"
    CANCEL = "cancel"
    RUN_NOW = "run-now"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRun:
    """One run.

    Attributes:
        where: Filter of dead letters; ``before_ms`` is set when the run is created.
        rate_per_s: Most messages per second; 0 for no limit.
        total: Dead letters of the stream when the run was created, without the filter.
        scanned: Messages read by the count.
        matched: Messages that match the filter, found by the count.
        done: Messages replayed or discarded so far.
        skipped: Messages that have disappeared since the count, or cannot be replayed.
        jobs: Filter of a run on jobs; ``phase`` and ``group`` select the place of the jobs.
    """

    id: str
    action: RunAction
    stream: str
    where: DeadFilter
    user: str
    state: RunState
    created_ms: int
    rate_per_s: float = 0.0
    total: int = 0
    scanned: int = 0
    matched: int = 0
    done: int = 0
    skipped: int = 0
    error: str = ""
    audit_id: str = ""
    group: str = ""
    phase: str = ""
    jobs: JobFilter | None = None

    @property
    def subject(self) -> str:
        """Name of the messages that it changes."""
        return "dead letters" if self.jobs is None else f"{self.phase} jobs"

    @property
    def is_active(self) -> bool:
        """True while a process must execute it."""
        return self.state in ACTIVE

    @property
    def fraction(self) -> float:
        """Completed share of the current step, from 0 to 1."""
        done, of = (self.scanned, self.total) if self.state is RunState.COUNTING else (self._passed, self.matched)
        return 1.0 if self.state is RunState.DONE else min(1.0, done / of) if of else 0.0

    @property
    def _passed(self) -> int:
        return self.done + self.skipped
