"""The demo on a machine that stalls whom it likes: its kill comes all the same, and at the worst moment."""

import contextlib
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from redis import Redis

from conquiet.cli.demo.board import State
from conquiet.cli.demo.conductor import Conductor
from conquiet.cli.demo.crew import Crew
from conquiet.cli.demo.ledger import Ledger
from conquiet.cli.demo.plan import DemoPlan
from conquiet.cli.demo.stage import GROUP, Stage, open_stage
from conquiet.cli.demo.view import Snapshot
from conquiet.cli.demo.worker import Job
from conquiet.testing import wait_until

if TYPE_CHECKING:
    from subprocess import Popen

Intervene = Callable[[Snapshot], None]
PLAN = DemoPlan(orders=100, workers=2)


class Watcher:
    """A view that remembers what was said and may intervene with each look, while the conductor waits for it."""

    def __init__(self, intervene: Intervene) -> None:
        self.said: list[str] = []
        self._intervene = intervene

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def show(self, snapshot: Snapshot) -> None:
        self._intervene(snapshot)

    def close_with(self, ledger: Ledger) -> None: ...


@pytest.fixture
def play(redis_url: str) -> Callable[..., tuple[Ledger, str]]:
    def perform(make: Callable[[Stage], Intervene], plan: DemoPlan = PLAN) -> tuple[Ledger, str]:
        with open_stage(redis_url=redis_url, db_url=None, mysql=False, durable=False) as stage:
            view = Watcher(make(stage))
            ledger = Conductor(plan, stage, view).run()
        return ledger, "\n".join(view.said)

    return perform


def drained(stage: Stage) -> bool:
    with Redis.from_url(stage.redis_url) as client:
        groups: Any = client.xinfo_groups(stage.stream)
    return any(one["name"] == GROUP.encode() and (one["pending"], one["lag"]) == (0, 0) for one in groups)


def assert_killed_at_the_worst_moment(ledger: Ledger, said: str) -> None:
    assert (ledger.balanced, ledger.kills) == (True, 1), said
    assert "worker-2 killed with -9 after COMMIT, before its acknowledgement" in said
    assert "took over" in said
    assert ledger.duplicates >= 1, "the one killed between COMMIT and acknowledgement"


def test_a_conductor_that_sleeps_until_the_workers_are_idle_still_kills(
    play: Callable[..., tuple[Ledger, str]],
) -> None:
    def make(stage: Stage) -> Intervene:
        def sleep_once(snapshot: Snapshot) -> None:
            if snapshot.handled and not woken:
                wait_until(lambda: drained(stage))
                woken.append(True)

        woken: list[bool] = []
        return sleep_once

    assert_killed_at_the_worst_moment(*play(make))


def stop_outside_a_transaction(pid: int, stage: Stage) -> None:
    """Stopped inside one, it would keep the only lock of the SQLite file, and nobody else could work."""
    with contextlib.closing(sqlite3.connect(stage.folder / "demo.sqlite", timeout=60, isolation_level=None)) as ours:
        ours.execute("BEGIN IMMEDIATE")  # had only when nobody else writes
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: ") T " in Path(f"/proc/{pid}/stat").read_text())
        ours.execute("ROLLBACK")


def test_a_victim_that_stands_still_while_the_other_does_everything_is_killed_when_it_wakes(
    play: Callable[..., tuple[Ledger, str]],
) -> None:
    """What it had in hand was taken over meanwhile, so it needs an order of its own for its last COMMIT."""

    def make(stage: Stage) -> Intervene:
        def hold(snapshot: Snapshot) -> None:
            _, victim = snapshot.workers
            if not held and victim.state is State.WORKING:
                os.kill(victim.pid, signal.SIGSTOP)
                wait_until(lambda: drained(stage))
                held.append(victim.pid)
            elif held and not woken and snapshot.held_back == 0:
                os.kill(held[0], signal.SIGCONT)
                woken.append(True)

        held: list[int] = []
        woken: list[bool] = []
        return hold

    assert_killed_at_the_worst_moment(*play(make))


def test_a_victim_that_starts_late_is_waited_for(
    play: Callable[..., tuple[Ledger, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sleepers: list[Popen[bytes]] = []

    class Sleepy(Crew):
        def _start(self, job: Job) -> "Popen[bytes]":
            process = super()._start(job)
            if job.name == "worker-2":
                process.send_signal(signal.SIGSTOP)
                sleepers.append(process)
            return process

    def make(_stage: Stage) -> Intervene:
        def wake(snapshot: Snapshot) -> None:
            other, _ = snapshot.workers
            if sleepers and (other.state is State.WAITING or snapshot.settled):
                assert snapshot.handled == 0, "it began before all were there"
                sleepers.pop().send_signal(signal.SIGCONT)

        return wake

    monkeypatch.setattr("conquiet.cli.demo.conductor.Crew", Sleepy)

    assert_killed_at_the_worst_moment(*play(make))


def test_a_single_order_and_a_single_worker_are_enough(play: Callable[..., tuple[Ledger, str]]) -> None:
    ledger, said = play(lambda _: lambda _: None, DemoPlan(orders=1, workers=1))

    assert (ledger.balanced, ledger.kills, ledger.duplicates, ledger.recovered) == (True, 1, 1, 1), said


def test_a_chaos_whose_conductor_sleeps_makes_all_its_trouble_afterwards(
    play: Callable[..., tuple[Ledger, str]],
) -> None:
    def make(stage: Stage) -> Intervene:
        def sleep(snapshot: Snapshot) -> None:
            if snapshot.handled:
                wait_until(lambda: drained(stage))

        return sleep

    ledger, said = play(make, DemoPlan(orders=100, workers=1, chaos=True))

    assert (ledger.balanced, ledger.kills) == (True, 2), said
