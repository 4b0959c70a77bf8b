import time

from conquiet.core.clock import SYSTEM_CLOCK, Clock


def test_the_system_clock_is_the_machines() -> None:
    clock: Clock = SYSTEM_CLOCK

    assert abs(clock.time() - time.time()) < 5
    assert clock.monotonic() <= clock.monotonic()
