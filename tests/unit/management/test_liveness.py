"""The state of a consumer, from its key, its idle time and the server's version."""

import pytest

from conquiet.management.liveness import consumer_state
from conquiet.management.models import ConsumerState

LIVE, IDLE, UNKNOWN, DEAD = ConsumerState


@pytest.mark.parametrize(
    ("idle_s", "has_key", "counts_attempts", "state"),
    [
        (59.999, False, False, LIVE),
        (59.999, None, True, LIVE),
        (60, True, True, IDLE),
        (60, True, False, IDLE),
        (60, False, False, UNKNOWN),
        (60, None, True, UNKNOWN),
        (60, None, False, UNKNOWN),
        (60, False, True, DEAD),
    ],
)
def test_only_a_server_that_counts_attempts_proves_a_death(
    *, idle_s: float, has_key: bool | None, counts_attempts: bool, state: ConsumerState
) -> None:
    assert consumer_state(idle_s, has_key=has_key, counts_attempts=counts_attempts) is state
