"""The rhythm of the thread that extends leases."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conquiet.errors import QueueError
from conquiet.runtime.heartbeat import Heartbeat, HeartbeatCallbacks
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.settings import RuntimeSettings


def test_after_a_failed_beat_the_next_one_comes_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may be one failed beat away from turning stale."""
    errors: list[BaseException] = []
    pauses_s: list[float | None] = []
    failures = iter([QueueError("away"), QueueError("away"), None])

    class Paused(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses_s.append(timeout)
            if len(pauses_s) == 4:
                heartbeat._stop.set()
            return False

    def beat(_: float) -> None:
        if (failure := next(failures)) is not None:
            raise failure

    parts = SimpleNamespace(
        topology=SimpleNamespace(client=None),
        table=LeaseTable(["s"]),
        group="g",
        consumer_id="c",
        settings=RuntimeSettings(claim_idle_ms=6_000),
    )
    heartbeat = Heartbeat(
        cast("Any", parts),
        name=cast("Any", SimpleNamespace(renew=lambda _: None, changed=Paused())),
        callbacks=HeartbeatCallbacks(
            lost=lambda _: None, failed=errors.append, succeeded=lambda: None, name_taken=errors.append
        ),
    )
    monkeypatch.setattr(heartbeat, "beat", beat)
    heartbeat._run()

    assert pauses_s == [2.0, 0.5, 0.5, 2.0]
    assert len(errors) == 2
