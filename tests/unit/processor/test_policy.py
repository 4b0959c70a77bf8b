"""The whole of the retry rules, without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.core import settlement
from conquiet.core.backoff import Backoff
from conquiet.errors import ConfigurationError
from conquiet.processor.policy import (
    RateLimit,
    Reason,
    Reject,
    Retry,
    RetryPolicy,
    decide,
    require_event,
)

errors = st.sampled_from([ValueError(), KeyError(), ConnectionResetError(), Retry(), Retry(2.5), Reject("no")])
kinds = st.lists(st.sampled_from([Exception, ValueError, LookupError, OSError]), max_size=2).map(tuple)
policies = st.builds(
    RetryPolicy,
    st.integers(1, 6),
    st.builds(
        Backoff,
        base_s=st.floats(0, 10),
        factor=st.floats(1, 3),
        cap_s=st.floats(0, 100),
        jitter=st.floats(0, 1),
    ),
    kinds,
    kinds,
)


@given(errors, st.integers(1, 10), policies, st.none() | st.integers(1, 10), st.floats(0, 1, exclude_max=True))
def test_every_failure_is_retried_within_its_attempts_or_dead_lettered(
    error: Exception, attempt: int, policy: RetryPolicy, own: int | None, number: float
) -> None:
    answer = decide(error, attempt=attempt, policy=policy, max_attempts=own, rand=lambda: number)

    match answer:
        case settlement.RetryLater(delay_ms):
            assert attempt < (policy.max_attempts if own is None else own)
            wait_s = error.after_s if isinstance(error, Retry) and error.after_s is not None else policy.backoff.cap_s
            assert 0 <= delay_ms <= wait_s * 1000 + 1
        case settlement.DeadLetter(reason):
            assert (reason == Reason.REJECTED.value) == isinstance(error, Reject)


@pytest.mark.parametrize(
    ("error", "attempt", "own", "answer"),
    [
        (ValueError(), 1, None, 1000),
        (ValueError(), 2, None, 2000),
        (ValueError(), 3, None, 3000),
        (ValueError(), 4, None, Reason.ATTEMPTS_EXHAUSTED.value),
        (ValueError(), 4, 5, 3000),
        (ValueError(), 1, 1, Reason.ATTEMPTS_EXHAUSTED.value),
        (KeyError(), 1, None, Reason.NOT_RETRYABLE.value),
        (IndexError(), 1, None, 1000),
        (Retry(0), 1, None, 0),
        (Retry(0.0101), 1, None, 11),
        (Retry(), 2, None, 2000),
        (Retry(1), 4, None, Reason.ATTEMPTS_EXHAUSTED.value),
        (Reject("x"), 1, None, Reason.REJECTED.value),
    ],
)
def test_the_table(error: Exception, attempt: int, own: int | None, answer: object) -> None:
    policy = RetryPolicy(4, Backoff(base_s=1, factor=2, cap_s=3, jitter=0), (ValueError, LookupError), (KeyError,))

    decided = decide(error, attempt=attempt, policy=policy, max_attempts=own)
    assert (decided.delay_ms if isinstance(decided, settlement.RetryLater) else decided.reason) == answer
    assert decided.failure is error


def test_nothing_is_retried_by_default() -> None:
    error = OSError()

    decided = decide(error, attempt=1, policy=RetryPolicy())

    assert decided == settlement.DeadLetter(Reason.ATTEMPTS_EXHAUSTED.value, error, max_attempts=1)


def test_the_short_forms() -> None:
    fixed = RetryPolicy.fixed(2, max_attempts=3)
    growing = RetryPolicy.exponential(1, max_attempts=9, cap_s=4, jitter=0)

    def delays(policy: RetryPolicy, attempts: int) -> list[int | None]:
        decided = [decide(OSError(), attempt=n, policy=policy) for n in range(1, attempts + 1)]
        return [one.delay_ms if isinstance(one, settlement.RetryLater) else None for one in decided]

    assert delays(fixed, 3) == [2000, 2000, None]
    assert delays(growing, 4) == [1000, 2000, 4000, 4000]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryPolicy(0),
        lambda: RetryPolicy(1, backoff=3),  # type: ignore[arg-type]
        lambda: RetryPolicy(1, retry_for=ValueError),  # type: ignore[arg-type]
        lambda: RetryPolicy(1, no_retry_for=("ValueError",)),  # type: ignore[arg-type]
        lambda: Retry(-1),
        lambda: RateLimit(0),
        lambda: RateLimit(1, per_s=0),
        lambda: RateLimit(1, burst=0),
        lambda: require_event("*"),
    ],
)
def test_invalid_policies_cannot_be_built(make: object) -> None:
    with pytest.raises(ConfigurationError):
        make()  # type: ignore[operator]


def test_turns_of_a_rate_are_spread_evenly() -> None:
    assert RateLimit(20).interval_us == 50_000
    assert RateLimit(3, per_s=60).interval_us == 20_000_000


@pytest.mark.parametrize(
    ("rate", "turn_ms", "now_ms", "lapsed"),
    [
        (RateLimit(10), None, 10**12, False),
        (RateLimit(10), 5_000, 4_000, False),
        (RateLimit(10), 5_000, 6_000, False),
        (RateLimit(10), 5_000, 6_001, True),
        (RateLimit(1, per_s=60), 5_000, 65_000, False),
        (RateLimit(1, per_s=60), 5_000, 65_001, True),
    ],
)
def test_a_turn_that_was_missed_is_void(rate: RateLimit, turn_ms: int | None, now_ms: int, *, lapsed: bool) -> None:
    assert rate.has_expired(turn_ms, now_ms=now_ms) is lapsed
