"""Kill processes on purpose: decide from snapshots, act on the workers and the shared state.

A busy host may stall any process for seconds, including the orchestrator. Nothing here depends on speed: the last
orders are held back until all faults are injected. A fault is due when its share is handled or nothing is left.
"""

from collections.abc import Iterator

from conquiet.cli.demo.plan import DemoPlan
from conquiet.cli.demo.shared_state import ALL, ControlState, DemoWorkerState, SharedState
from conquiet.cli.demo.view import DemoSnapshot
from conquiet.cli.demo.workers import WorkerProcesses
from conquiet.testing import RedisServer


class SingleKill:
    """Kills one worker half-way, after COMMIT and before the acknowledgement.

    The victim may be so slow that the others have handled everything before its next commit. Then the others wait, and
    only the victim receives the orders that were held back.

    Attributes:
        kills: Workers killed so far.
        restarts: Times the private Redis was killed so far.
        releases_last_orders: True once the orders that were held back may be enqueued.
    """

    def __init__(self, plan: DemoPlan) -> None:
        self.kills = 0
        self.restarts = 0
        self.releases_last_orders = False
        self._at = plan.orders // 2
        self._victim = min(1, plan.workers - 1)
        self._asked = False
        self._recovered = 0

    def step(self, snapshot: DemoSnapshot, workers: WorkerProcesses, state: SharedState) -> Iterator[str]:
        """Freeze the victim half-way, kill it once it has stopped, report which worker took over."""
        if self.kills:
            yield from self._aftermath(snapshot)
        elif not self._asked:
            if snapshot.handled >= self._at or snapshot.drained:
                state.command = ControlState(ALL, freeze=self._victim)
                self._asked = True
        elif snapshot.workers[self._victim].state is DemoWorkerState.FROZEN:
            yield from self._kill(snapshot, workers, state)
        elif snapshot.drained:
            self._leave_the_rest_to_the_victim(snapshot, state)
        yield from revive(workers)

    def _kill(self, snapshot: DemoSnapshot, workers: WorkerProcesses, state: SharedState) -> Iterator[str]:
        process, line = workers.processes[self._victim], snapshot.workers[self._victim]
        workers.kill(process)
        self.kills += 1
        self.releases_last_orders = True
        state.command = ControlState(ALL)
        yield (
            f"{line.name} killed with -9 after COMMIT, before its acknowledgement; "
            f"{line.row.in_flight} messages were in flight"
        )
        if len(workers.processes) == 1:
            workers.restart(process)
            yield f"{line.name} restarted: it is the only worker"

    def _leave_the_rest_to_the_victim(self, snapshot: DemoSnapshot, state: SharedState) -> None:
        closed = ControlState(self._victim, freeze=self._victim)
        if state.command != closed:
            state.command = closed  # the next snapshot shows which workers have read it
            return
        others = [worker for row, worker in enumerate(snapshot.workers) if row != self._victim]
        self.releases_last_orders = all(worker.state is DemoWorkerState.WAITING for worker in others)

    def _aftermath(self, snapshot: DemoSnapshot) -> Iterator[str]:
        if snapshot.recovered > self._recovered:
            who = max(snapshot.workers, key=lambda worker: worker.row.recovered).name
            yield f"{who} took over {snapshot.recovered - self._recovered} messages of the killed worker"
            self._recovered = snapshot.recovered


class Chaos:
    """Kills every worker one after the other, restarts it under its name, and kills the private Redis too."""

    def __init__(self, plan: DemoPlan, server: RedisServer | None) -> None:
        self.kills = 0
        self.restarts = 0
        self._server = server
        steps = plan.workers * 2
        self._kill_at = [plan.orders * number // (steps + 1) for number in range(1, steps + 1)]
        self._restart_at = [plan.orders * part // 10 for part in (3, 7)] if server else []

    @property
    def releases_last_orders(self) -> bool:
        """True once every planned fault is injected."""
        return not self._kill_at and not self._restart_at

    def step(self, snapshot: DemoSnapshot, workers: WorkerProcesses, state: SharedState) -> Iterator[str]:  # noqa: ARG002 - as in SingleKill
        """Inject the faults that are due."""
        if _is_due(self._restart_at, snapshot):
            self._restart_at.pop(0)
            assert self._server is not None  # noqa: S101 - without a server the list is empty
            self._server.kill()
            self._server.restart()
            self.restarts += 1
            yield "Redis killed with -9 and restarted; its append-only file brought everything back"
        if _is_due(self._kill_at, snapshot):
            self._kill_at.pop(0)
            at = self.kills % len(workers.processes)
            workers.kill(workers.processes[at])
            self.kills += 1
            yield f"{workers.processes[at].settings.name} killed with -9 in mid-work, and restarted under its name"
            workers.restart(workers.processes[at])
        yield from revive(workers)


FaultInjection = SingleKill | Chaos
"""Injects faults: ``step`` is called with each snapshot, and yields a sentence for each fault that it injects."""


def make_fault_injection(plan: DemoPlan, server: RedisServer | None) -> FaultInjection:
    """Return the faults of the plan."""
    return Chaos(plan, server) if plan.chaos else SingleKill(plan)


def _is_due(shares: list[int], snapshot: DemoSnapshot) -> bool:
    # A worker killed between COMMIT and its counter leaves the count one short, so a drained queue counts too.
    return bool(shares) and (snapshot.handled >= shares[0] or snapshot.drained)


def revive(workers: WorkerProcesses) -> Iterator[str]:
    """Restart workers that ended without a kill, for example because Redis was down."""
    for process in workers.ended():
        workers.restart(process)
        yield f"{process.settings.name} ended unexpectedly and was restarted"
