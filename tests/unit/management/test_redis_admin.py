"""Commands of an examination are sent evenly."""

import threading

import pytest
from redis import Redis

from conquiet.core import clock as core_clock
from conquiet.errors import LifecycleError
from conquiet.management import redis_admin
from conquiet.management.redis_admin import PacedRedisAdmin


class Clock:
    """Time that passes when it is slept."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_commands_are_spread_and_a_pipeline_counts_each(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(redis_admin, "time", clock)
    monkeypatch.setattr(core_clock, "time", clock)
    with PacedRedisAdmin(Redis(port=1)) as admin:
        admin.limit(20.0)
        for _ in range(21):
            admin._wait(1)
        assert clock.now_s == pytest.approx(101.0)
        admin._wait(40)
        admin._wait(1)

    assert clock.now_s == pytest.approx(103.05)


def test_an_examination_ends_when_its_dashboard_closes() -> None:
    closing = threading.Event()
    with PacedRedisAdmin(Redis(port=1)) as admin:
        admin.limit(0.001, closing)
        admin._wait(1)
        closing.set()

        with pytest.raises(LifecycleError):
            admin._wait(1)
