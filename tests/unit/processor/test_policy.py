"""The whole of the retry rules, without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.errors import ConfigurationError
from conquiet.kernel.backoff import Backoff
from conquiet.processor.policy import (
    DeadLetter,
    Done,
    RateLimit,
    Reason,
    Reject,
    Retry,
    RetryAt,
    RetryPolicy,
    decide,
    require_event,
)

errors = st.sampled_from([None, ValueError(), KeyError(), ConnectionResetError(), Retry(), Retry(2.5), Reject("no")])
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
def test_every_outcome_has_one_answer_and_no_message_is_tried_for_ever(
    error: Exception | None, attempt: int, policy: RetryPolicy, own: int | None, number: float
) -> None:
    answer = decide(error, attempt=attempt, policy=policy, max_attempts=own, rand=lambda: number)

    match answer:
        case Done():
            assert error is None
        case RetryAt(delay_ms):
            assert error is not None
            assert attempt < (policy.max_attempts if own is None else own)
            wait_s = error.after if isinstance(error, Retry) and error.after is not None else policy.backoff.cap_s
            assert 0 <= delay_ms <= wait_s * 1000 + 1
        case DeadLetter(reason):
            assert error is not None
            assert (reason is Reason.REJECTED) == isinstance(error, Reject)


@pytest.mark.parametrize(
    ("error", "attempt", "own", "answer"),
    [
        (None, 1, None, Done()),
        (ValueError(), 1, None, RetryAt(1000)),
        (ValueError(), 2, None, RetryAt(2000)),
        (ValueError(), 3, None, RetryAt(3000)),
        (ValueError(), 4, None, DeadLetter(Reason.ATTEMPTS_EXHAUSTED)),
        (ValueError(), 4, 5, RetryAt(3000)),
        (ValueError(), 1, 1, DeadLetter(Reason.ATTEMPTS_EXHAUSTED)),
        (KeyError(), 1, None, DeadLetter(Reason.NOT_RETRYABLE)),
        (IndexError(), 1, None, RetryAt(1000)),
        (Retry(0), 1, None, RetryAt(0)),
        (Retry(0.0101), 1, None, RetryAt(11)),
        (Retry(), 2, None, RetryAt(2000)),
        (Retry(1), 4, None, DeadLetter(Reason.ATTEMPTS_EXHAUSTED)),
        (Reject("x"), 1, None, DeadLetter(Reason.REJECTED)),
    ],
)
def test_the_table(error: Exception | None, attempt: int, own: int | None, answer: object) -> None:
    policy = RetryPolicy(4, Backoff(base_s=1, factor=2, cap_s=3, jitter=0), (ValueError, LookupError), (KeyError,))

    assert decide(error, attempt=attempt, policy=policy, max_attempts=own) == answer


def test_nothing_is_tried_again_unless_somebody_asked_for_it() -> None:
    assert decide(OSError(), attempt=1, policy=RetryPolicy()) == DeadLetter(Reason.ATTEMPTS_EXHAUSTED)


def test_the_short_forms() -> None:
    fixed = RetryPolicy.fixed(2, max_attempts=3)
    growing = RetryPolicy.exponential(1, max_attempts=9, cap_s=4, jitter=0)

    assert [decide(OSError(), attempt=n, policy=fixed) for n in (1, 2)] == [RetryAt(2000)] * 2
    assert [decide(OSError(), attempt=n, policy=growing) for n in (1, 2, 3, 4)] == [
        RetryAt(1000),
        RetryAt(2000),
        RetryAt(4000),
        RetryAt(4000),
    ]


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
def test_what_exists_is_valid(make: object) -> None:
    with pytest.raises(ConfigurationError):
        make()  # type: ignore[operator]


def test_turns_of_a_rate_are_spread_evenly() -> None:
    assert RateLimit(20).turn_us == 50_000
    assert RateLimit(3, per_s=60).turn_us == 20_000_000


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
    assert rate.has_lapsed(turn_ms, now_ms=now_ms) is lapsed
