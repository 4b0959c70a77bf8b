"""The event loop of a worker process."""

import asyncio
import sys

import pytest

from conquiet.cli.worker.child import loop_factory


def test_a_worker_runs_on_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert type(runner.get_loop()).__module__.startswith("uvloop")

    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None
