"""The readiness of processes in a shared file."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from conquiet.cli.worker.heartbeat_file import FRESH_S, HeartbeatFile, ReadinessReasons


def test_a_heartbeat_is_fresh_for_three_seconds() -> None:
    assert FRESH_S == 3.0


def test_a_heartbeat_counts_only_for_its_process_and_while_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeats = HeartbeatFile.create(tmp_path, 2)
    heartbeats.write(1, pid=7, ready=True)

    assert heartbeats.is_ready(1, 7)
    assert not heartbeats.is_ready(1, 8), "a row of the process before"
    assert not heartbeats.is_ready(0, 7)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
    monkeypatch.setattr("conquiet.cli.worker.heartbeat_file.time", later)
    assert not heartbeats.is_ready(1, 7), "a blocked event loop writes no heartbeat"
    heartbeats.close()


def test_reasons_are_read_by_the_supervisor_and_replaced(tmp_path: Path) -> None:
    here, there = (ReadinessReasons(tmp_path, 3) for _ in range(2))
    assert there.read() == {}

    here.write({"database": "the server is away"})
    assert there.read() == {"database": "the server is away"}

    here.write({})
    assert there.read() == {}
