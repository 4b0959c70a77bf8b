import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.core.backoff import Backoff
from conquiet.errors import ConfigurationError


def test_without_jitter_the_delay_doubles_up_to_the_cap() -> None:
    backoff = Backoff(base_s=1.0, factor=2.0, cap_s=5.0, jitter=0.0)

    assert [backoff.delay_s(n) for n in (1, 2, 3, 4, 5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_full_jitter_reaches_from_nothing_to_the_whole_delay() -> None:
    backoff = Backoff(base_s=8.0, factor=1.0, cap_s=8.0, jitter=1.0)

    assert backoff.delay_s(1, rand=lambda: 0.0) == 8.0
    assert backoff.delay_s(1, rand=lambda: 0.75) == 2.0


@given(st.integers(1, 100_000), st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_no_delay_is_negative_or_beyond_the_cap_however_often_it_failed(
    failures: int, jitter: float, rand: float
) -> None:
    delay = Backoff(base_s=0.1, factor=3.0, cap_s=60.0, jitter=jitter).delay_s(failures, rand=lambda: rand)

    assert 0.0 <= delay <= 60.0


@pytest.mark.parametrize(
    "settings", [{"base_s": -1.0}, {"cap_s": float("inf")}, {"factor": 0.5}, {"factor": 1e9}, {"jitter": 1.1}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Backoff(**settings)


def test_there_is_no_delay_before_the_first_failure() -> None:
    with pytest.raises(ConfigurationError, match="failures"):
        Backoff().delay_s(0)
