"""A bulk run: what it is to do, where it stands, and its numbers. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from conquiet.management.jobs.models import JobFilter
from conquiet.processor.dead_letters import DeadFilter


class RunState(StrEnum):
    """Where a run stands."""

    COUNTING = "counting"
    COUNTED = "counted"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


ACTIVE: Final = frozenset({RunState.COUNTING, RunState.RUNNING})
"""States in which a process has to work on the run."""


class RunAction(StrEnum):
    """What a run does: replay and discard with dead letters, cancel and run-now with jobs."""

    REPLAY = "replay"
    DISCARD = "discard"
    CANCEL = "cancel"
    RUN_NOW = "run-now"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRun:
    """One run.

    Attributes:
        where: Which dead letters; ``before_ms`` is set when the run is made.
        rate_per_s: Most messages per second; 0 is as fast as it goes.
        total: Dead letters of the stream when it was made, whatever the filter.
        scanned: Looked at while counting.
        matched: Found by counting.
        done: Replayed or discarded so far.
        skipped: Gone meanwhile, or unreplayable.
        jobs: For a run on jobs: which ones; ``phase`` and ``group`` say where they are.
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
        """What it changes, in words."""
        return "dead letters" if self.jobs is None else f"{self.phase} jobs"

    @property
    def is_active(self) -> bool:
        """True while a process works on it."""
        return self.state in ACTIVE

    @property
    def fraction(self) -> float:
        """How much of the current step is done, from 0 to 1."""
        done, of = (self.scanned, self.total) if self.state is RunState.COUNTING else (self._passed, self.matched)
        return 1.0 if self.state is RunState.DONE else min(1.0, done / of) if of else 0.0

    @property
    def _passed(self) -> int:
        return self.done + self.skipped
