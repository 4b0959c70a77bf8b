"""Entries: checked when built, the same due times and ids on every host."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.unit.scheduler.builders import an_entry

from conquiet.errors import ConfigurationError
from conquiet.scheduler import entry_codec
from conquiet.scheduler.entries import Every, Once, due_of, from_ms, to_ms

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": ""}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "n" * 181}, "name must have at most 180"),
        ({"event": " "}, "event"),
        ({"event": "e" * 201}, "event must have at most 200"),
        ({"stream": "a{b"}, "braces"),
        ({"when": "@daily"}, "when must be"),
        ({"data": [1]}, "data must be a mapping"),
        ({"data": {"x": float("nan")}}, "data cannot be sent: it holds NaN"),
        ({"data": {"x": object()}}, "data cannot be sent"),
        ({"data": {"x": "y" * 1_000_001}}, "data cannot be sent"),
        ({"catch_up": "some"}, "catch_up"),
        ({"catch_up_limit": 0}, "catch_up_limit"),
        ({"catch_up_limit": 501}, "catch_up_limit must be at most 500"),
        ({"catch_up_limit": True}, "catch_up_limit"),
        ({"misfire_grace_s": -1}, "misfire_grace_s"),
        ({"misfire_grace_s": 3601}, "misfire_grace_s must be at most an hour"),
        ({"jitter_s": float("inf")}, "jitter_s"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_entry_is_built(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        an_entry(**changes)


@pytest.mark.parametrize("interval_s", [0, -1, 0.05, 0.1234567, True, "5", float("nan"), 4e9])
def test_an_interval_that_cannot_be_kept_is_refused(interval_s: Any) -> None:
    with pytest.raises(ConfigurationError, match="interval_s"):
        Every(interval_s)


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), 5, None, "2026-01-01"])  # noqa: DTZ001 - the point
def test_a_time_without_a_zone_is_refused(moment: Any) -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        Once(moment)
    with pytest.raises(ConfigurationError, match="time zone"):
        Every(60, anchor=moment)


def test_an_interval_is_the_same_on_every_host_whenever_it_was_started() -> None:
    every = Every(90, anchor=NOON)

    assert every.next_after(to_ms("noon", NOON)) == to_ms("noon", NOON) + 90_000
    assert every.next_after(to_ms("noon", NOON) - 1) == to_ms("noon", NOON)
    assert every.next_after(to_ms("noon", NOON) - 90_001) == to_ms("noon", NOON) - 90_000
    assert every.count_between(to_ms("noon", NOON), to_ms("noon", NOON) + 900_000) == 10


def test_a_one_off_time_is_the_same_instant_in_any_zone() -> None:
    east = timezone(timedelta(hours=5))

    assert Once(NOON).at_ms == Once(NOON.astimezone(east)).at_ms
    assert Once(NOON).count_between(0, 2**42) == 1


def test_later_changes_of_the_callers_data_change_nothing() -> None:
    data = {"kinds": ["sales"]}
    entry = an_entry(data=data)
    data["kinds"].append("stock")

    assert entry.data == {"kinds": ["sales"]}


def test_the_data_is_not_shown() -> None:
    assert "sales" not in repr(an_entry())


def test_a_fire_id_holds_entry_and_due_time_and_can_be_parsed() -> None:
    due = to_ms("noon", NOON)

    assert an_entry().fire_id(due) == f"nightly@{due}"
    assert due_of(an_entry(name="a@b").fire_id(due)) == NOON
    assert due_of("4f2a") is None
    assert due_of("jane@example.org") is None


@pytest.mark.parametrize("at", [datetime.fromtimestamp(0, UTC), datetime(1960, 1, 1, tzinfo=UTC)])
def test_a_moment_that_would_never_be_fired_is_refused(at: datetime) -> None:
    """An entry's pointer starts at the epoch: a time before it would never fire, without an error."""
    with pytest.raises(ConfigurationError, match="1970"):
        Once(at)


def test_a_moment_that_could_be_stored_but_not_read_is_refused() -> None:
    last = datetime.max.replace(tzinfo=UTC)

    for build in (lambda: Once(last), lambda: Every(60, anchor=last)):
        with pytest.raises(ConfigurationError, match="9999"):
            build()
    latest = an_entry(when=Once(datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)), jitter_s=3_600)
    assert entry_codec.decode(entry_codec.encode(latest)) == latest
    from_ms(latest.fire_at(to_ms("at", datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC))))  # a date, too
