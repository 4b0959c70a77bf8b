"""The demo on a machine that stalls single processes: the kill still happens, at the worst moment."""

import contextlib
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from rich.console import Console

from conquiet.cli.demo.environment import GROUP, DemoEnvironment, open_environment
from conquiet.cli.demo.orchestrator import Orchestrator
from conquiet.cli.demo.plan import DemoPlan
from conquiet.cli.demo.shared_state import DemoWorkerState
from conquiet.cli.demo.summary import Summary
from conquiet.cli.demo.view import DemoSnapshot, DemoView
from conquiet.cli.demo.worker import WorkerSettings
from conquiet.cli.demo.workers import WorkerProcesses
from conquiet.testing import wait_until

if TYPE_CHECKING:
    from subprocess import Popen

Intervene = Callable[[DemoSnapshot], None]
PLAN = DemoPlan(orders=100, workers=2)
HANGS_S = 300.0
"""Only what hangs takes as long as this, on a busy machine too."""


class Watcher(DemoView):
    """A view that records the output and may intervene with each snapshot, while the orchestrator waits."""

    def __init__(self, intervene: Intervene) -> None:
        super().__init__(Console(quiet=True))
        self.said: list[str] = []
        self._intervene = intervene

    def log(self, sentence: str) -> None:
        self.said.append(sentence)

    def show(self, snapshot: DemoSnapshot) -> None:
        self._intervene(snapshot)

    def show_summary(self, summary: Summary) -> None: ...


@pytest.fixture
def play(redis_url: str) -> Callable[..., tuple[Summary, str]]:
    def perform(make: Callable[[DemoEnvironment], Intervene], plan: DemoPlan = PLAN) -> tuple[Summary, str]:
        with open_environment(redis_url=redis_url, db_url=None, mysql=False, durable=False) as environment:
            view = Watcher(make(environment))
            summary = Orchestrator(plan, environment, view).run()
        return summary, "\n".join(view.said)

    return perform


def drained(environment: DemoEnvironment) -> bool:
    with Redis.from_url(environment.redis_url) as client:
        groups: Any = client.xinfo_groups(environment.stream)
    return any(one["name"] == GROUP.encode() and (one["pending"], one["lag"]) == (0, 0) for one in groups)


def assert_killed_at_the_worst_moment(summary: Summary, said: str) -> None:
    assert (summary.balanced, summary.kills) == (True, 1), said
    assert "worker-2 killed with -9 after COMMIT, before its acknowledgement" in said
    assert "took over" in said
    assert summary.duplicates >= 1, "the one killed between COMMIT and acknowledgement"


def test_an_orchestrator_that_sleeps_too_long_still_kills(
    play: Callable[..., tuple[Summary, str]],
) -> None:
    def make(environment: DemoEnvironment) -> Intervene:
        def sleep_once(snapshot: DemoSnapshot) -> None:
            if snapshot.handled and not woken:
                wait_until(lambda: drained(environment), timeout_s=HANGS_S)
                woken.append(True)

        woken: list[bool] = []
        return sleep_once

    assert_killed_at_the_worst_moment(*play(make))


def stop_outside_a_transaction(pid: int, environment: DemoEnvironment) -> None:
    """Stopped inside one, it would keep the only lock of the SQLite file, and no other worker could write."""
    with contextlib.closing(
        sqlite3.connect(environment.folder / "demo.sqlite", timeout=HANGS_S, isolation_level=None)
    ) as ours:
        ours.execute("BEGIN IMMEDIATE")  # acquired only when no other process writes
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: ") T " in Path(f"/proc/{pid}/stat").read_text())
        ours.execute("ROLLBACK")


def test_a_stopped_victim_is_killed_when_it_continues(
    play: Callable[..., tuple[Summary, str]],
) -> None:
    """Its messages were claimed meanwhile, so it needs another order for its last COMMIT."""

    def make(environment: DemoEnvironment) -> Intervene:
        def hold(snapshot: DemoSnapshot) -> None:
            _, victim = snapshot.workers
            if not held and victim.state is DemoWorkerState.WORKING:
                stop_outside_a_transaction(victim.row.pid, environment)
                wait_until(lambda: drained(environment), timeout_s=HANGS_S)
                held.append(victim.row.pid)
            elif held and not woken and snapshot.held_back == 0:
                os.kill(held[0], signal.SIGCONT)
                woken.append(True)

        held: list[int] = []
        woken: list[bool] = []
        return hold

    assert_killed_at_the_worst_moment(*play(make))


def test_a_victim_that_starts_late_is_waited_for(
    play: Callable[..., tuple[Summary, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sleepers: list[Popen[bytes]] = []

    class Sleepy(WorkerProcesses):
        def _start(self, settings: WorkerSettings) -> "Popen[bytes]":
            process = super()._start(settings)
            if settings.name == "worker-2":
                process.send_signal(signal.SIGSTOP)
                sleepers.append(process)
            return process

    def make(_stage: DemoEnvironment) -> Intervene:
        def wake(snapshot: DemoSnapshot) -> None:
            other, _ = snapshot.workers
            if sleepers and (other.state is DemoWorkerState.WAITING or snapshot.settled):
                assert snapshot.handled == 0, "it began before all were there"
                sleepers.pop().send_signal(signal.SIGCONT)

        return wake

    monkeypatch.setattr("conquiet.cli.demo.orchestrator.WorkerProcesses", Sleepy)

    assert_killed_at_the_worst_moment(*play(make))


def test_a_single_order_and_a_single_worker_are_enough(play: Callable[..., tuple[Summary, str]]) -> None:
    summary, said = play(lambda _: lambda _: None, DemoPlan(orders=1, workers=1))

    assert (summary.balanced, summary.kills, summary.duplicates, summary.recovered) == (True, 1, 1, 1), said


def test_chaos_with_a_sleeping_orchestrator_injects_all_faults_afterwards(
    play: Callable[..., tuple[Summary, str]],
) -> None:
    def make(environment: DemoEnvironment) -> Intervene:
        def sleep(snapshot: DemoSnapshot) -> None:
            if snapshot.handled:
                wait_until(lambda: drained(environment), timeout_s=HANGS_S)

        return sleep

    summary, said = play(make, DemoPlan(orders=100, workers=1, chaos=True))

    assert (summary.balanced, summary.kills) == (True, 2), said
