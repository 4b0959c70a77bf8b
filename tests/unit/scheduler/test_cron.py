"""Cron expressions, and clock changes checked by hand.

The clock changes of 2026, from the tz database (`zdump -v`), written as local time = UTC:

    Europe/Berlin         29 Mar  02:00 CET  → 03:00 CEST   at 01:00Z    (+1 → +2)
                          25 Oct  03:00 CEST → 02:00 CET    at 01:00Z    (+2 → +1)
    America/New_York       8 Mar  02:00 EST  → 03:00 EDT    at 07:00Z    (-5 → -4)
                           1 Nov  02:00 EDT  → 01:00 EST    at 06:00Z    (-4 → -5)
    Australia/Lord_Howe    5 Apr  02:00 (+11)    → 01:30 (+10:30)   at 15:00Z on 4 Apr
                           4 Oct  02:00 (+10:30) → 02:30 (+11)      at 15:30Z on 3 Oct
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.errors import ConfigurationError
from conquiet.scheduler.cron import NICKNAMES, Cron
from conquiet.scheduler.entries import Every, from_ms, to_ms

START = to_ms("start", datetime(2026, 11, 15, 21, 57, 56, tzinfo=UTC))  # a Sunday


def next_run(expression: str, zone: str = "UTC") -> str:
    found = Cron(expression, zone).next_after(START)
    assert found is not None
    return from_ms(found).strftime("%Y-%m-%d %H:%M:%S")


def runs(cron: Cron | Every, start: str, count: int) -> list[str]:
    """The next runs after ``start`` (both UTC), as text to compare with a table."""
    found = []
    instant = to_ms("start", datetime.fromisoformat(start).replace(tzinfo=UTC))
    for _ in range(count):
        following = cron.next_after(instant)
        assert following is not None
        assert following > instant
        instant = following
        found.append(from_ms(instant).strftime("%m-%d %H:%M:%S").removesuffix(":00"))
    return found


BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


FIXED = [
    # 02:30 on 29 March does not exist: the clock goes from 02:00 to 03:00. Due at the end of the jump, 03:00 CEST.
    ("30 2 * * *", BERLIN, "2026-03-27T12:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
    # Two times in the jump, and one at its end, are one instant, and one run.
    ("0,30 2,3 * * *", BERLIN, "2026-03-29T00:00", ["03-29 01:00", "03-29 01:30", "03-30 00:00"]),
    # With seconds in front it is the same nightly job, so the same rule holds.
    ("15 30 2 * * *", BERLIN, "2026-03-27T12:00", ["03-28 01:30:15", "03-29 01:00", "03-30 00:30:15"]),
    # 02:30 on 25 October comes at 00:30Z (summer time) and again at 01:30Z (winter time): the first counts.
    ("30 2 * * *", BERLIN, "2026-10-23T12:00", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
    # Between the two, the second time is still not a run.
    ("30 2 * * *", BERLIN, "2026-10-25T01:10", ["10-26 01:30"]),
    # Before and after the changes nothing is special: 12:00 is 11:00Z in winter and 10:00Z in summer.
    ("0 12 * * *", BERLIN, "2026-03-27T12:00", ["03-28 11:00", "03-29 10:00", "03-30 10:00"]),
    ("30 2 * * *", NEW_YORK, "2026-03-06T12:00", ["03-07 07:30", "03-08 07:00", "03-09 06:30"]),
    # 01:30 on 1 November: 05:30Z by EDT, then 06:30Z by EST. The first one only.
    ("30 1 * * *", NEW_YORK, "2026-10-30T12:00", ["10-31 05:30", "11-01 05:30", "11-02 06:30"]),
    # Half an hour is skipped: 02:15 on 4 October is due at 02:30 (+11), which is 15:30Z the day before.
    ("15 2 * * *", LORD_HOWE, "2026-10-02T12:00", ["10-02 15:45", "10-03 15:30", "10-04 15:15"]),
    # Half an hour comes twice: 01:45 on 5 April at 14:45Z (+11) and again at 15:15Z (+10:30). The first one only.
    ("45 1 * * *", LORD_HOWE, "2026-04-03T12:00", ["04-03 14:45", "04-04 14:45", "04-05 15:15"]),
    # The same two nights with seconds in front, and Berlin's autumn.
    ("20 15 2 * * *", LORD_HOWE, "2026-10-02T12:00", ["10-02 15:45:20", "10-03 15:30", "10-04 15:15:20"]),
    ("20 45 1 * * *", LORD_HOWE, "2026-04-03T12:00", ["04-03 14:45:20", "04-04 14:45:20", "04-05 15:15:20"]),
    ("20 30 2 * * *", BERLIN, "2026-10-23T12:00", ["10-24 00:30:20", "10-25 00:30:20", "10-26 01:30:20"]),
]


RECURRING = [
    # Each hour at half past, as time goes by: 01:30 CET, then 03:30 CEST an hour later. None is made up for 02:30.
    ("30 * * * *", BERLIN, "2026-03-29T00:00", ["03-29 00:30", "03-29 01:30", "03-29 02:30"]),
    # 02:30 CEST, 02:30 CET, 03:30 CET: still one an hour.
    ("30 * * * *", BERLIN, "2026-10-25T00:00", ["10-25 00:30", "10-25 01:30", "10-25 02:30"]),
    # Hour 2 is not there on 29 March, so nothing is due; the next day it is again.
    ("*/30 2 * * *", BERLIN, "2026-03-28T12:00", ["03-30 00:00", "03-30 00:30", "03-31 00:00"]),
    # Hour 2 is there twice on 25 October.
    ("*/30 2 * * *", BERLIN, "2026-10-24T12:00", ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30"]),
    # 01:15 EDT, 01:15 EST, 02:15 EST.
    ("15 * * * *", NEW_YORK, "2026-11-01T04:30", ["11-01 05:15", "11-01 06:15", "11-01 07:15"]),
    # 01:15 EST, then 03:15 EDT.
    ("15 * * * *", NEW_YORK, "2026-03-08T06:00", ["03-08 06:15", "03-08 07:15", "03-08 08:15"]),
    # 00:00 (+10:30), 03:00 (+11), 06:00 (+11) on 4 October: 2.5 hours, then 3. A walk by whole hours misses 03:00.
    ("0 */3 * * *", LORD_HOWE, "2026-10-03T12:00", ["10-03 13:30", "10-03 16:00", "10-03 19:00"]),
    # Hour 1 of 5 April: 01:00, :15, :30, :45 by summer time, then 01:30 and 01:45 once more.
    (
        "*/15 1 * * *",
        LORD_HOWE,
        "2026-04-04T13:00",
        ["04-04 14:00", "04-04 14:15", "04-04 14:30", "04-04 14:45", "04-04 15:00", "04-04 15:15", "04-05 14:30"],
    ),
    # A quarter of an hour is a quarter of an hour on the day that has only 23.5 of them.
    ("*/15 * * * *", LORD_HOWE, "2026-10-03T15:10", ["10-03 15:15", "10-03 15:30", "10-03 15:45", "10-03 16:00"]),
    # Every ten seconds through the end of the repeated half hour.
    ("*/10 * * * * *", LORD_HOWE, "2026-04-04T14:59:45", ["04-04 14:59:50", "04-04 15:00", "04-04 15:00:10"]),
]


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


@pytest.mark.parametrize(("expression", "zone", "start", "expected"), FIXED)
def test_a_nightly_job_runs_once_a_night_through_both_clock_changes(
    expression: str, zone: str, start: str, expected: list[str]
) -> None:
    assert runs(Cron(expression, zone), start, len(expected)) == expected


@pytest.mark.parametrize(("expression", "zone", "start", "expected"), RECURRING)
def test_a_recurring_job_follows_the_clock_on_the_wall_through_both_changes(
    expression: str, zone: str, start: str, expected: list[str]
) -> None:
    assert runs(Cron(expression, zone), start, len(expected)) == expected


def test_an_interval_is_elapsed_time_and_knows_no_clock_changes() -> None:
    assert runs(Every(3600), "2026-03-29T00:00", 3) == ["03-29 01:00", "03-29 02:00", "03-29 03:00"]


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE])
@pytest.mark.parametrize("expression", ["30 2 * * *", "45 1 * * *", "0 0 * * *"])
def test_a_daily_job_runs_on_every_day_of_the_year_exactly_once(expression: str, zone: str) -> None:
    instant = to_ms("start", datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))) - 1
    days = []
    while (instant := Cron(expression, zone).next_after(instant) or 0) < to_ms(
        "end", datetime(2027, 1, 1, tzinfo=ZoneInfo(zone))
    ):
        days.append(from_ms(instant).astimezone(ZoneInfo(zone)).date())

    first = datetime(2026, 1, 1, tzinfo=UTC).date()
    assert days == [first + timedelta(days=number) for number in range(365)]


@pytest.mark.parametrize(
    ("expression", "zone", "start", "alone", "ours"),
    [
        # Lord Howe's spring day: 03:00 (+11) is 16:00Z, and is passed over.
        ("0 */3 * * *", LORD_HOWE, "2026-10-03T14:00", ["10-03 19:00"], ["10-03 16:00"]),
        # A nightly job with seconds is lost in spring, by an hour and by half an hour …
        ("0 30 2 * * *", BERLIN, "2026-03-28T12:00", ["03-30 00:30"], ["03-29 01:00"]),
        ("0 15 2 * * *", LORD_HOWE, "2026-10-03T12:00", ["10-04 15:15"], ["10-03 15:30"]),
        # … and runs twice in autumn, when a whole hour is repeated.
        ("0 30 2 * * *", BERLIN, "2026-10-24T12:00", ["10-25 00:30", "10-25 01:30"], ["10-25 00:30", "10-26 01:30"]),
        # During the second pass of a repeated hour cronsim returns a fixed time of the first pass, which is over.
        ("30 2 * * *", BERLIN, "2026-10-25T01:10", ["10-25 00:30"], ["10-26 01:30"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04T15:05", ["04-04 14:45"], ["04-05 15:15"]),
    ],
)
def test_results_differ_from_those_of_cronsim_alone(
    expression: str, zone: str, start: str, alone: list[str], ours: list[str]
) -> None:
    """The reasons for a separate search. Once cronsim behaves differently, docs/scheduler.md must change."""
    walk = CronSim(expression, datetime.fromisoformat(start).replace(tzinfo=UTC).astimezone(ZoneInfo(zone)))
    found = [next(walk).astimezone(UTC).strftime("%m-%d %H:%M") for _ in alone]

    assert found == alone
    assert runs(Cron(expression, zone), start, len(ours)) == ours


@settings(deadline=None)
@given(
    minute=st.sampled_from(["0", "30", "15,45", "*", "*/20", "5-10"]),
    hour=st.sampled_from(["*", "*/2", "0", "1", "2", "3", "1-3", "23"]),
    zone=st.sampled_from([BERLIN, NEW_YORK]),
    days=st.integers(-3, 3),
    seconds=st.integers(0, 86_400),
    change=st.sampled_from(["2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01"]),
)
def test_it_agrees_with_cronsim_where_cronsim_is_right(
    minute: str, hour: str, zone: str, days: int, seconds: int, change: str
) -> None:
    """An independent walk over whole-hour changes. If cronsim returns a past time, it is called again."""
    start = datetime.fromisoformat(change).replace(tzinfo=UTC) + timedelta(days=days, seconds=seconds)
    expression = f"{minute} {hour} * * *"
    walk = CronSim(expression, start.astimezone(ZoneInfo(zone)))
    instant = to_ms("start", start)
    for _ in range(10):
        expected = next(walk)
        while to_ms("expected", expected) <= instant:
            expected = next(walk)
        following = Cron(expression, zone).next_after(instant)

        assert following == to_ms("expected", expected)
        instant = following
