"""Steps at a limited rate."""

import math
from typing import Any

import pytest

from conquiet.core.throttle import Throttle
from conquiet.errors import ConfigurationError


class StoppedClock:
    """A clock that a test sets."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


def test_steps_are_spread_evenly() -> None:
    throttle = Throttle(10, StoppedClock())

    assert [round(throttle.reserve(), 3) for _ in range(4)] == [0.0, 0.1, 0.2, 0.3]


def test_several_steps_at_a_time_take_the_time_of_each() -> None:
    throttle = Throttle(10, StoppedClock())

    assert [round(throttle.reserve(5), 3), round(throttle.reserve(1), 3)] == [0.0, 0.5]


def test_a_late_step_is_not_made_up_for() -> None:
    clock = StoppedClock()
    throttle = Throttle(10, clock)
    throttle.reserve()
    clock.now_s += 60

    assert [round(throttle.reserve(), 3), round(throttle.reserve(), 3)] == [0.0, 0.1]


def test_without_a_rate_nothing_waits() -> None:
    throttle = Throttle(None, StoppedClock())

    assert [throttle.reserve() for _ in range(3)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0, -1, True, "5", math.nan])
def test_a_rate_is_a_number_above_zero(rate: Any) -> None:
    with pytest.raises(ConfigurationError, match="rate_per_s must be a number above 0"):
        Throttle(rate)
