"""The settlement of a message without a handler, from the facts alone."""

import pytest

from conquiet.core.settlement import ACKNOWLEDGE, DeadLetter, Defer
from conquiet.errors import ConfigurationError
from conquiet.processor.policy import RetryPolicy, allowed_attempts
from conquiet.processor.settings import ProcessorSettings
from conquiet.processor.unknown_events import LONGEST_MS, SHORTEST_MS, decide_unknown

NOW = 1_763_000_000_000


@pytest.mark.parametrize(
    ("age_ms", "settlement"),
    [
        (None, Defer(SHORTEST_MS, unknown_since_ms=NOW)),
        (299_999, Defer(LONGEST_MS, unknown_since_ms=NOW - 299_999)),
        (300_000, DeadLetter("unknown_event")),
        (NOW, DeadLetter("unknown_event")),
        (-(2**50), Defer(SHORTEST_MS, unknown_since_ms=NOW)),  # a foreign time in the future
    ],
)
def test_a_grace_is_counted_from_the_first_time_it_was_unknown(age_ms: int | None, settlement: object) -> None:
    since_ms = None if age_ms is None else NOW - age_ms
    assert decide_unknown("dead_letter", grace_s=300, since_ms=since_ms, now_ms=NOW) == settlement


@pytest.mark.parametrize(("age_ms", "delay_ms"), [(0, 250), (1_000, 250), (8_000, 2_000), (10**9, 30_000)])
def test_left_events_are_never_dead_lettered_and_wait_longer_each_time(age_ms: int, delay_ms: int) -> None:
    settlement = decide_unknown("leave", grace_s=0, since_ms=NOW - age_ms, now_ms=NOW)
    assert settlement == Defer(delay_ms, unknown_since_ms=NOW - age_ms)


def test_ignored_events_are_acknowledged_immediately() -> None:
    assert decide_unknown("ignore", grace_s=300, since_ms=None, now_ms=NOW) is ACKNOWLEDGE


@pytest.mark.parametrize("unknown", ["drop", "", None, {"orders": "drop"}])
def test_another_policy_for_unknown_events_is_refused(unknown: object) -> None:
    with pytest.raises(ConfigurationError, match="unknown must be one of dead_letter, leave, ignore"):
        ProcessorSettings(unknown=unknown)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "policy", "limit", "allowed"),
    [
        (None, 3, None, 3), (2, 3, None, 2), (4, 3, None, 3), (10**9, 3, None, 3),
        (None, 3, 100, 3), (5, 1, 100, 5), (10**9, 3, 100, 100), (10**9, 500, 100, 500),
    ],
)  # fmt: skip
def test_a_messages_own_number_of_attempts_is_bounded(
    own: int | None, policy: int, limit: int | None, allowed: int
) -> None:
    assert allowed_attempts(own, RetryPolicy(max_attempts=policy), limit) == allowed
