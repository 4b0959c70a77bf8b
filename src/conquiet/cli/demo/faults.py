"""What goes wrong on purpose, and when. Decides by looking at snapshots; acts on the crew and the board.

A machine may stall anybody for seconds, the conductor too. So nothing here depends on being quick: the last orders
are held back until the deeds are done, and a deed is due when its share is handled or nothing is left to handle.
"""

from collections.abc import Iterator
from typing import Protocol

from conquiet.cli.demo.board import EVERYBODY, Board, Call, State
from conquiet.cli.demo.crew import Crew, Member
from conquiet.cli.demo.plan import DemoPlan
from conquiet.cli.demo.view import Snapshot
from conquiet.testing import RedisServer


class Faults(Protocol):
    """Makes trouble. ``step`` is called with each look and says what it did.

    Attributes:
        kills: Workers killed so far.
        restarts: Times the private Redis was killed so far.
    """

    kills: int
    restarts: int

    @property
    def wants_the_rest(self) -> bool:
        """True once the orders that were held back may come."""
        ...

    def step(self, snapshot: Snapshot, crew: Crew, board: Board) -> Iterator[str]:
        """Do what is due now and yield a sentence for each deed."""
        ...


def make_faults(plan: DemoPlan, server: RedisServer | None) -> Faults:
    """Return the trouble that the plan asks for."""
    return Chaos(plan, server) if plan.chaos else OneKill(plan)


class OneKill:
    """One worker is killed half-way, at the worst moment: after COMMIT, before the acknowledgement.

    It may be so slow that the others have done everything before it commits once more. Then they wait, and what was
    held back is the victim's alone: however slow it is, its moment comes.
    """

    def __init__(self, plan: DemoPlan) -> None:
        self.kills = 0
        self.restarts = 0
        self.wants_the_rest = False
        self._at = plan.orders // 2
        self._victim = min(1, plan.workers - 1)
        self._asked = False
        self._recovered = 0

    def step(self, snapshot: Snapshot, crew: Crew, board: Board) -> Iterator[str]:
        """Freeze the victim half-way, kill it once it stands still, tell who took over."""
        if self.kills:
            yield from self._aftermath(snapshot)
        elif not self._asked:
            if snapshot.handled >= self._at or snapshot.drained:
                board.call = Call(EVERYBODY, freeze=self._victim)
                self._asked = True
        elif snapshot.workers[self._victim].state is State.FROZEN:
            yield from self._kill(snapshot, crew, board)
        elif snapshot.drained:
            self._leave_the_rest_to_the_victim(snapshot, board)
        yield from revive(crew)

    def _kill(self, snapshot: Snapshot, crew: Crew, board: Board) -> Iterator[str]:
        member, line = crew.members[self._victim], snapshot.workers[self._victim]
        crew.kill(member)
        self.kills += 1
        self.wants_the_rest = True
        board.call = Call(EVERYBODY)
        yield (
            f"{line.name} killed with -9 after COMMIT, before its acknowledgement; "
            f"{line.in_hand} messages were in its hands"
        )
        if len(crew.members) == 1:
            crew.restart(member)
            yield f"{line.name} started again: there is nobody else"

    def _leave_the_rest_to_the_victim(self, snapshot: Snapshot, board: Board) -> None:
        closed = Call(self._victim, freeze=self._victim)
        if board.call != closed:
            board.call = closed  # the next look tells who saw it
            return
        others = [worker for row, worker in enumerate(snapshot.workers) if row != self._victim]
        self.wants_the_rest = all(worker.state is State.WAITING for worker in others)

    def _aftermath(self, snapshot: Snapshot) -> Iterator[str]:
        if snapshot.recovered > self._recovered:
            who = max(snapshot.workers, key=lambda worker: worker.recovered).name
            yield f"{who} took over {snapshot.recovered - self._recovered} messages of the dead"
            self._recovered = snapshot.recovered


class Chaos:
    """Every worker is killed in turn, some come back under their name, and the private Redis is killed too."""

    def __init__(self, plan: DemoPlan, server: RedisServer | None) -> None:
        self.kills = 0
        self.restarts = 0
        self._server = server
        steps = plan.workers * 2
        self._kill_at = [plan.orders * number // (steps + 1) for number in range(1, steps + 1)]
        self._restart_at = [plan.orders * part // 10 for part in (3, 7)] if server else []

    @property
    def wants_the_rest(self) -> bool:
        """True once every planned deed is done."""
        return not self._kill_at and not self._restart_at

    def step(self, snapshot: Snapshot, crew: Crew, board: Board) -> Iterator[str]:  # noqa: ARG002 - asks nobody first
        """Kill whoever's turn has come."""
        if _is_due(self._restart_at, snapshot):
            self._restart_at.pop(0)
            assert self._server is not None  # noqa: S101 - the list is empty without one
            self._server.kill()
            self._server.restart()
            self.restarts += 1
            yield "Redis killed with -9 and started again; its append-only file brought everything back"
        if _is_due(self._kill_at, snapshot):
            self._kill_at.pop(0)
            at = self.kills % len(crew.members)
            crew.kill(crew.members[at])
            self.kills += 1
            yield f"{crew.members[at].job.name} killed with -9 in mid-work, and started again under its name"
            crew.restart(crew.members[at])
        yield from revive(crew)


def _is_due(shares: list[int], snapshot: Snapshot) -> bool:
    # A worker killed between COMMIT and its note leaves the count one short for ever: being drained counts too.
    return bool(shares) and (snapshot.handled >= shares[0] or snapshot.drained)


def revive(crew: Crew) -> Iterator[str]:
    """Start workers again whose process ended by itself, e.g. because Redis was gone."""
    fallen: list[Member] = crew.fallen()
    for member in fallen:
        crew.restart(member)
        yield f"{member.job.name} ended by itself and was started again"
