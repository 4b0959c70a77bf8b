import pytest

from conquiet.dashboard.formatting import ago, clock, duration, first_waits, number, rate, retries, size
from conquiet.management.fleet import DelayedCounts


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "\u2013"), (0, "0"), (999, "999"), (1_000_000, "1\u202f000\u202f000"), (1234.9, "1\u202f234")],
)
def test_thousands_are_separated(value: float | None, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "\u2013"),
        (0.0021, "2 ms"),
        (1.25, "1.2 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (7260, "2 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_time_spans_have_two_units(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_moments_are_shown_with_their_age() -> None:
    assert ago(1_000, 11_000) == "10 s ago"
    assert ago(11_000, 1_000) == "in 10 s"
    assert ago(0, 1_000) == "\u2013"
    assert clock(1_763_244_000_000) == "2025-11-15 22:00:00 UTC"
    assert clock(1e30) == "\u2013"


def test_rates_have_as_many_digits_as_matter() -> None:
    assert [rate(one) for one in (None, 0, 0.25, 9.94, 12.4, 12_345.0)] == [
        "\u2013",
        "0",
        "0.2",
        "9.9",
        "12",
        "12\u202f345",
    ]


def test_sizes_have_a_unit() -> None:
    assert [size(one) for one in (None, 12, 2048, 5_000_000)] == ["\u2013", "12 B", "2.0 kB", "4.8 MB"]


@pytest.mark.parametrize(
    ("counts", "delayed", "waiting", "again"),
    [
        (None, 0, "0", "0"),
        (None, 7, "7", "\u2013"),  # not counted yet
        (DelayedCounts(retrying=3, read_count=7, total=7), 7, "4", "3"),
        (DelayedCounts(retrying=400, read_count=1_000, total=5_000), 5_000, "5\u202f000", "400 of 1\u202f000"),
    ],
)
def test_retries_are_counted_apart_from_delayed_messages(
    counts: DelayedCounts | None, delayed: int, waiting: str, again: str
) -> None:
    assert first_waits(counts, delayed) == waiting
    assert retries(counts, delayed) == again
