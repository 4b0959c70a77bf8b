"""Attempts to connect again."""

from conquiet.core.backoff import Backoff
from conquiet.metrics.outages import OutageWatch
from conquiet.runtime.reconnect import Reconnect


def test_reconnecting_is_bounded_and_a_success_resets_it() -> None:
    outage = OutageWatch("Redis", "nothing is read")
    reconnect = Reconnect(Backoff(base_s=1, factor=2, jitter=0), 2, "read", outage)
    failure = ConnectionError()

    assert [reconnect.delay_s(failure, "") for _ in range(3)] == [1, 2, None]
    reconnect.succeeded()
    assert reconnect.delay_s(failure, "") == 1
    assert reconnect.total == 3
    reconnect.close()
    assert not outage.is_failing
