"""The engine in a seeded world: the same seed repeats the same trace, and a planted bug does not stay hidden."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.world import live

from conquiet.runtime import claiming, heartbeat, pending_reader, runner
from conquiet.runtime.acknowledger import Acknowledger

ROOT = Path(__file__).parents[2]
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
SEEDS = 10_000 if TORTURE else 12


def test_no_seed_has_an_anomaly() -> None:
    totals: Counter[str] = Counter()
    for seed in range(1, SEEDS + 1):
        result = live(seed)
        assert result.anomalies == {}, f"python scripts/simulate.py {seed} repeats it: {result.summary['examples']}"
        totals.update({name: result.summary[name] for name in ("messages", "faults", "again")})

    assert totals["messages"] > SEEDS * 10
    assert totals["faults"] > SEEDS
    assert totals["again"] > SEEDS / 4


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    code = "from tests.simulation.world import live; print(*(live(seed).trace for seed in (3, 14, 15)))"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])

    def traces(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed}
        environment = {name: value for name, value in environment.items() if not name.startswith("COVERAGE_PROCESS")}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        return done.stdout.split()

    here = [live(seed).trace for seed in (3, 14, 15)]
    assert traces("1") == traces("2") == here
    assert len(set(here)) == 3


def first_bad_seed(most: int) -> tuple[int, dict[str, int]]:
    for seed in range(1, most + 1):
        if found := live(seed).anomalies:
            return seed, found
    return 0, {}


def test_a_lease_that_is_not_extended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "due", lambda *_: [])

    seed, found = first_bad_seed(200)

    assert found, "200 seeds are clean with a heartbeat that extends nothing"
    assert live(seed).anomalies == found


def test_a_claim_that_ignores_the_idle_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(*args: Any, **options: Any) -> bytes:
        return claiming.take_over(*args, **{**options, "idle_ms": 0})

    monkeypatch.setattr(pending_reader, "take_over", impatient)

    assert first_bad_seed(200)[1]


def test_acknowledging_before_the_handler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    call = runner.Runner.__call__

    def hasty(self: Any, message: Any, **options: Any) -> Awaitable[None] | None:
        self._acknowledge(message)
        return call(self, message, **options)

    monkeypatch.setattr(runner.Runner, "__call__", hasty)

    assert "lost" in first_bad_seed(200)[1]


def test_an_acknowledgement_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Any, batch: Any) -> None:
        self._unconfirmed -= len(batch.messages)

    monkeypatch.setattr(Acknowledger, "requeue", forget)

    assert first_bad_seed(400)[1]
