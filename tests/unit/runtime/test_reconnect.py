"""Attempts to connect again."""

import pytest
from redis.exceptions import MovedError

from conquiet.core.backoff import Backoff
from conquiet.errors import QueueError
from conquiet.metrics.outages import OutageWatch
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.settings import RuntimeSettings


def test_reconnecting_is_bounded_and_a_success_resets_it() -> None:
    settings = RuntimeSettings(reconnect=Backoff(base_s=1, factor=2, jitter=0), max_reconnects=2)
    outage = OutageWatch("Redis", "nothing is read")
    reconnect = Reconnect(settings, "read", outage)
    failure = ConnectionError()

    assert [reconnect.delay_s(failure, "") for _ in range(3)] == [1, 2, None]
    reconnect.succeeded()
    assert reconnect.delay_s(failure, "") == 1
    assert reconnect.total == 3
    reconnect.close()
    assert not outage.is_failing


def test_a_slot_that_moves_is_no_outage_unless_it_never_arrives(caplog: pytest.LogCaptureFixture) -> None:
    settings = RuntimeSettings(reconnect=Backoff(base_s=0), max_reconnects=100)
    outage = OutageWatch("Redis", "nothing is read")
    reconnect = Reconnect(settings, "read", outage)
    moved = QueueError("refused")
    moved.__cause__ = MovedError("1 127.0.0.1:7000")
    for _ in range(10):
        reconnect.delay_s(moved, "127.0.0.1:7001")
    assert caplog.text == ""

    reconnect.delay_s(moved, "127.0.0.1:7001")

    assert "Redis at 127.0.0.1:7001 is unavailable" in caplog.text
    reconnect.close()
