from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.errors import ConfigurationError
from conquiet.scheduler.cron import NICKNAMES, Cron
from conquiet.scheduler.entries import from_ms, to_ms

START = to_ms("start", datetime(2026, 11, 15, 21, 57, 56, tzinfo=UTC))  # a Sunday


def next_run(expression: str, zone: str = "UTC") -> str:
    found = Cron(expression, zone).next_after(START)
    assert found is not None
    return from_ms(found).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", "2026-11-15 21:58:00"),
        ("*/20 * * * *", "2026-11-15 22:00:00"),
        ("5 4 * * *", "2026-11-16 04:05:00"),
        ("0 0 1 * *", "2026-12-01 00:00:00"),
        ("0 9 * * MON-FRI", "2026-11-16 09:00:00"),
        ("0 9 * * 7", "2026-11-22 09:00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00"),
        ("0 0 L * *", "2026-11-30 00:00:00"),
        ("0 0 * * FRI#1", "2026-12-04 00:00:00"),
        ("0 0 LW 1 *", "2027-01-29 00:00:00"),  # the 31st is a Sunday
        ("0 0 * * 5L", "2026-11-27 00:00:00"),
        ("0 0 1 JAN *", "2027-01-01 00:00:00"),
        ("0 0 13 * FRI", "2026-11-20 00:00:00"),  # day of month or weekday
        ("0 0 */2 * FRI", "2026-11-27 00:00:00"),  # one starts with *: both; the 20th is even
        ("*/10 * * * * *", "2026-11-15 21:58:00"),
        ("57 57 21 * * *", "2026-11-15 21:57:57"),
    ],
)
def test_five_and_six_fields(expression: str, expected: str) -> None:
    assert next_run(expression) == expected


@pytest.mark.parametrize(
    ("nickname", "expected"),
    [
        ("@yearly", "2027-01-01 00:00:00"),
        ("@annually", "2027-01-01 00:00:00"),
        ("@monthly", "2026-12-01 00:00:00"),
        ("@weekly", "2026-11-22 00:00:00"),
        ("@daily", "2026-11-16 00:00:00"),
        ("@midnight", "2026-11-16 00:00:00"),
        ("@hourly", "2026-11-15 22:00:00"),
        ("@Hourly", "2026-11-15 22:00:00"),
    ],
)
def test_nicknames(nickname: str, expected: str) -> None:
    assert next_run(nickname) == expected
    assert nickname.lower() in NICKNAMES


def test_the_zone_decides_what_the_clock_shows() -> None:
    assert next_run("0 8 * * *", "Asia/Tokyo") == "2026-11-15 23:00:00"  # 08:00 on the 16th, nine hours ahead
    assert next_run("0 8 * * *", "America/Los_Angeles") == "2026-11-16 16:00:00"  # eight hours behind


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "non-empty"),
        ("* * * *", "5 fields"),
        ("* * * * * * *", "5 fields"),
        ("60 * * * *", "Bad minute"),
        ("* 24 * * *", "Bad hour"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("*/0 * * * *", "Bad minute"),
        ("x * * * *", "Bad minute"),
        ("@reboot", "nickname.*@hourly"),
        ("* * * * *\n", "control characters"),
        ("0 0 1 1 " + "1," * 200 + "1", "longer"),
        ("0 0 30 2 *\x00", "control"),
    ],
)
def test_an_invalid_expression_is_refused_with_its_reason(expression: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Cron(expression)


def test_an_expression_that_is_never_due_is_refused() -> None:
    """No February has a fifth Monday on its 30th."""
    with pytest.raises(ConfigurationError, match="never due"):
        Cron("0 0 */31 2 MON#5")


@pytest.mark.parametrize("zone", ["Mars/Base", "../../etc/passwd", "Europe", "", "CEST"])
def test_an_unknown_zone_is_refused_when_it_is_built(zone: str) -> None:
    with pytest.raises(ConfigurationError, match=r"tz|time zone"):
        Cron("@daily", zone)


@settings(deadline=None)
@given(st.text(alphabet="0123456789*/-,#LW@ MONJAN\x00é", max_size=30))
def test_any_text_is_an_advancing_schedule_or_a_configuration_error(text: str) -> None:
    try:
        cron = Cron(text)
    except ConfigurationError:
        return
    following = cron.next_after(START)
    assert following is None or following > START


@settings(deadline=None)
@given(st.integers(0, 4_000_000_000_000), st.sampled_from(["*/7 * * * * *", "30 2 * * *", "@monthly"]))
def test_the_next_run_is_the_same_anywhere_between_two_runs(instant: int, expression: str) -> None:
    cron = Cron(expression, "Europe/Berlin")
    following = cron.next_after(instant)
    assert following is not None
    assert instant < following
    assert cron.next_after(following - 1) == following
    assert cron.next_after((instant + following - 1) // 2) == following


def test_ticks_between_two_moments_are_counted() -> None:
    hour = 3_600_000

    assert Cron("*/10 * * * *").count_between(START, START + hour) == 6
    assert Cron("* * * * * *", "Europe/Berlin").count_between(START, START + 3_650 * 24 * hour) == 3_650 * 86_400
    assert Cron("0 3 * * 1-5", "Europe/Berlin").count_between(START, START + 7 * 24 * hour) == 5


EXPRESSIONS = [
    *("*/7 * * * *", "30 * * * *", "* 0-2 * * *", "30 2 * * *", "0 0 * * *", "15,45 0-3,23 * * *", "30 23 * * *"),
    *("20,40 5-59/20 0-3 * * *", "0 0 0 * * MON", "0 12 30 12 *"),
]
CHANGES = {
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],
    "Antarctica/Troll": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/Sao_Paulo": ["2018-02-18T02:00", "2018-11-04T03:00"],  # at midnight
    "America/Scoresbysund": ["2024-03-31T00:00"],  # 23:00 to midnight, and over the hour before
    "Pacific/Apia": ["2011-12-30T10:00"],  # a whole day was left out
    "UTC": ["2026-11-16T00:00"],
}


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([(zone, change) for zone, changes in CHANGES.items() for change in changes]),
    st.sampled_from(EXPRESSIONS),
    st.integers(-30 * 3_600, 3_600),
    st.integers(0, 40 * 3_600),
)
def test_ticks_are_counted_as_they_come_across_any_change_of_clocks(
    where: tuple[str, str], expression: str, before_s: int, long_s: int
) -> None:
    zone, change = where
    cron = Cron(expression, zone)
    after = int(datetime.fromisoformat(change).replace(tzinfo=UTC).timestamp() + before_s) * 1_000
    until = after + long_s * 1_000
    walked = 0
    tick = cron.next_after(after)
    while tick is not None and tick <= until:
        walked += 1
        tick = cron.next_after(tick)

    assert cron.count_between(after, until) == walked


def test_there_is_nothing_after_the_end_of_the_calendar() -> None:
    end = datetime(9999, 12, 1, tzinfo=UTC)

    assert Cron("@yearly").next_after(int(end.timestamp() * 1_000)) is None
