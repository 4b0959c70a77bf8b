"""What goes wrong on purpose, and when. Decides by looking at snapshots; acts on the crew."""

from collections.abc import Iterator
from typing import Protocol

from conquiet.cli.demo.board import State
from conquiet.cli.demo.crew import Crew, Member
from conquiet.cli.demo.plan import DemoPlan
from conquiet.cli.demo.view import Snapshot
from conquiet.testing import RedisServer

_PATIENCE_S = 3.0


class Faults(Protocol):
    """Makes trouble. ``step`` is called with each look and says what it did."""

    kills: int
    restarts: int

    def step(self, snapshot: Snapshot, crew: Crew) -> Iterator[str]:
        """Do what is due now and yield a sentence for each deed."""
        ...


def make_faults(plan: DemoPlan, server: RedisServer | None) -> Faults:
    """Return the trouble that the plan asks for."""
    return Chaos(plan, server) if plan.chaos else OneKill(plan)


class OneKill:
    """One worker is killed half-way, at the worst moment: after COMMIT, before the acknowledgement."""

    def __init__(self, plan: DemoPlan) -> None:
        self.kills = 0
        self.restarts = 0
        self._at = plan.orders // 2
        self._victim = min(1, plan.workers - 1)
        self._asked_at_s: float | None = None
        self._recovered = 0

    def step(self, snapshot: Snapshot, crew: Crew) -> Iterator[str]:
        """Freeze the victim half-way, kill it once it stands still, tell who took over."""
        if self.kills:
            yield from self._aftermath(snapshot, crew)
            return
        member, line = crew.members[self._victim], snapshot.workers[self._victim]
        if self._asked_at_s is None and snapshot.handled >= self._at:
            crew.freeze(member)
            self._asked_at_s = snapshot.elapsed_s
        elif self._asked_at_s is not None and (
            line.state is State.FROZEN or snapshot.elapsed_s - self._asked_at_s > _PATIENCE_S
        ):
            crew.kill(member)
            self.kills += 1
            moment = " after COMMIT, before its acknowledgement" if line.state is State.FROZEN else ""
            yield f"{line.name} killed with -9{moment}; {line.in_hand} messages were in its hands"
            if len(crew.members) == 1:
                crew.restart(member)
                yield f"{line.name} started again: there is nobody else"

    def _aftermath(self, snapshot: Snapshot, crew: Crew) -> Iterator[str]:
        if snapshot.recovered > self._recovered:
            who = max(snapshot.workers, key=lambda worker: worker.recovered).name
            yield f"{who} took over {snapshot.recovered - self._recovered} messages of the dead"
            self._recovered = snapshot.recovered
        yield from revive(crew)


class Chaos:
    """Every worker is killed in turn, some come back under their name, and the private Redis is killed too."""

    def __init__(self, plan: DemoPlan, server: RedisServer | None) -> None:
        self.kills = 0
        self.restarts = 0
        self._server = server
        steps = plan.workers * 2
        self._kill_at = [plan.orders * number // (steps + 1) for number in range(1, steps + 1)]
        self._restart_at = [plan.orders * part // 10 for part in (3, 7)] if server else []

    def step(self, snapshot: Snapshot, crew: Crew) -> Iterator[str]:
        """Kill whoever's turn has come."""
        if self._restart_at and snapshot.handled >= self._restart_at[0]:
            self._restart_at.pop(0)
            assert self._server is not None  # noqa: S101 - the list is empty without one
            self._server.kill()
            self._server.restart()
            self.restarts += 1
            yield "Redis killed with -9 and started again; its append-only file brought everything back"
        if self._kill_at and snapshot.handled >= self._kill_at[0]:
            self._kill_at.pop(0)
            at = self.kills % len(crew.members)
            crew.kill(crew.members[at])
            self.kills += 1
            yield f"{crew.members[at].job.name} killed with -9 in mid-work, and started again under its name"
            crew.restart(crew.members[at])
        yield from revive(crew)


def revive(crew: Crew) -> Iterator[str]:
    """Start workers again whose process ended by itself, e.g. because Redis was gone."""
    fallen: list[Member] = crew.fallen()
    for member in fallen:
        crew.restart(member)
        yield f"{member.job.name} ended by itself and was started again"
