"""Ticks that fire, as a table and compared with a simple second implementation."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.scheduler.cron import Cron
from conquiet.scheduler.entries import FIRE_LIMIT, CatchUp, Every, Once, ScheduleEntry, When, from_ms
from conquiet.scheduler.misfires import FirePlan, newest, plan_fires

MINUTE = 60_000
HOUR = 60 * MINUTE


def an_entry(when: When | None = None, **settings: Any) -> ScheduleEntry:
    return ScheduleEntry("report", when or Every(3600), "report.made", "reports", **settings)


@pytest.mark.parametrize("policy", ["skip", "one", "all"])
def test_a_punctual_tick_fires_whatever_the_policy(policy: CatchUp) -> None:
    assert plan_fires(an_entry(catch_up=policy), HOUR, 2 * HOUR + 5_000) == FirePlan((2 * HOUR,), 0, 2 * HOUR, 3 * HOUR)


@pytest.mark.parametrize("policy", ["skip", "one", "all"])
def test_nothing_fires_before_its_time_and_the_plan_has_it(policy: CatchUp) -> None:
    assert plan_fires(an_entry(catch_up=policy), HOUR, 2 * HOUR - 1) == FirePlan((), 0, HOUR, 2 * HOUR)


@pytest.mark.parametrize(
    ("policy", "limit", "fired", "missed"),
    [
        ("skip", 100, (), 5),
        ("one", 100, (6 * HOUR,), 4),
        ("all", 100, (2 * HOUR, 3 * HOUR, 4 * HOUR, 5 * HOUR, 6 * HOUR), 0),
        ("all", 2, (5 * HOUR, 6 * HOUR), 3),
    ],
)
def test_late_ticks_go_by_the_policy_and_each_is_fired_or_counted(
    policy: CatchUp, limit: int, fired: tuple[int, ...], missed: int
) -> None:
    planned = plan_fires(an_entry(catch_up=policy, catch_up_limit=limit), HOUR, 6 * HOUR + 10 * MINUTE)

    assert planned == FirePlan(fired, missed, 6 * HOUR, 7 * HOUR)


def test_catching_up_once_uses_a_punctual_run_if_there_is_one() -> None:
    assert plan_fires(an_entry(catch_up="one"), HOUR, 4 * HOUR) == FirePlan((4 * HOUR,), 2, 4 * HOUR, 5 * HOUR)


def test_late_and_punctual_ticks_fire_together_in_the_order_they_were_due() -> None:
    planned = plan_fires(an_entry(catch_up="all"), HOUR, 4 * HOUR)

    assert planned.fire == (2 * HOUR, 3 * HOUR, 4 * HOUR)


def test_a_short_pause_loses_no_tick_of_a_schedule_of_seconds() -> None:
    planned = plan_fires(an_entry(Every(1), catch_up="skip"), 10_000, 12_900)

    assert planned == FirePlan((11_000, 12_000), 0, 12_000, 13_000)


def test_a_one_off_time_is_over_once_it_has_fired() -> None:
    entry = an_entry(Once(from_ms(HOUR)))

    assert plan_fires(entry, 0, HOUR - 1) == FirePlan((), 0, 0, HOUR)
    assert plan_fires(entry, 0, HOUR) == FirePlan((HOUR,), 0, HOUR, None)
    assert plan_fires(entry, HOUR, 5 * HOUR) == FirePlan((), 0, HOUR, None)


def test_a_one_off_time_that_passed_unseen_goes_by_the_policy() -> None:
    assert plan_fires(an_entry(Once(from_ms(HOUR)), catch_up="one"), 0, 2 * HOUR) == FirePlan((HOUR,), 0, HOUR, None)
    assert plan_fires(an_entry(Once(from_ms(HOUR)), catch_up="skip"), 0, 2 * HOUR) == FirePlan((), 1, HOUR, None)


def test_jitter_holds_a_tick_back_by_the_same_amount_everywhere() -> None:
    entry = an_entry(jitter_s=600)
    held_back = {entry.fire_at(hour * HOUR) - hour * HOUR for hour in range(200)}

    assert min(held_back) >= 0
    assert max(held_back) <= 600_000
    assert len(held_back) > 150  # spread, not one value
    assert an_entry(jitter_s=600).fire_at(HOUR) == entry.fire_at(HOUR)
    assert plan_fires(entry, 0, entry.fire_at(HOUR) - 1).fire == ()
    assert plan_fires(entry, 0, entry.fire_at(HOUR)).fire == (HOUR,)


@pytest.mark.parametrize(("every", "jitter_s"), [(10, 60), (10, 20), (60, 3600)])
@pytest.mark.parametrize("policy", ["skip", "one", "all"])
def test_jitter_longer_than_the_interval_loses_no_tick(policy: CatchUp, every: int, jitter_s: int) -> None:
    """A host that is always there fires every tick, in order."""
    entry = an_entry(Every(every), catch_up=policy, jitter_s=float(jitter_s))
    now = decided = 1_700_000_000_000 // 60_000 * 60_000
    fired: list[int] = []
    end = decided + (1_000 * every + jitter_s) * 1_000
    while now < end:
        planned = plan_fires(entry, decided, now)
        assert planned.missed == 0
        fired += planned.fire
        decided = planned.decided
        assert planned.wake_at is not None
        now = max(now, planned.wake_at)

    assert fired[:1_000] == list(range(fired[0], fired[0] + every * 1_000_000, every * 1_000))


def test_ticks_left_over_by_a_full_step_are_not_late() -> None:
    entry = an_entry(Every(0.1), catch_up="skip", jitter_s=3600.0)
    now = decided = 1_700_000_000_000 + 22 * 600_000  # soon after, more than 500 wait for one
    steps: list[int] = []
    while FIRE_LIMIT not in steps[:-1]:
        planned = plan_fires(entry, decided, now)
        assert planned.missed == 0
        assert planned.wake_at is not None
        steps.append(len(planned.fire))
        decided, now = planned.decided, max(now, planned.wake_at)

    assert steps[-1] > 0


def test_ticks_of_an_outage_are_late_also_with_jitter() -> None:
    entry = an_entry(Every(10), catch_up="skip", jitter_s=60.0)

    planned = plan_fires(entry, 0, HOUR)

    assert len(planned.fire) <= 12
    assert planned.missed == planned.decided // 10_000 - len(planned.fire) > 300


def test_a_tick_that_has_only_just_become_late_is_not_lost() -> None:
    planned = plan_fires(an_entry(Every(10), catch_up="all", misfire_grace_s=0.0), 0, 30_001)

    assert planned == FirePlan((10_000, 20_000, 30_000), 0, 30_000, 40_000)


def test_punctual_ticks_above_the_limit_are_left_for_the_next_step() -> None:
    entry = an_entry(Every(1), misfire_grace_s=3600)

    first = plan_fires(entry, 0, 700_000)
    second = plan_fires(entry, first.decided, 700_000)

    assert (len(first.fire), first.missed, first.decided, first.wake_at) == (FIRE_LIMIT, 0, 500_000, 700_000)
    assert (len(second.fire), second.missed, second.decided) == (200, 0, 700_000)


def test_a_year_without_hosts_is_planned_without_walking_each_second() -> None:
    """Thirty million ticks are counted exactly."""
    year = 365 * 24 * HOUR

    assert plan_fires(an_entry(Every(1), catch_up="all", catch_up_limit=3), 0, year).missed == 365 * 24 * 3600 - 6 - 3
    planned = plan_fires(an_entry(Cron("* * * * * *"), catch_up="one"), 0, year)
    assert (planned.decided, planned.missed) == (year, 365 * 24 * 3600 - 6)


def test_the_newest_ticks_are_found_however_far_apart_they_are() -> None:
    until = int(datetime(2026, 11, 15, tzinfo=UTC).timestamp() * 1_000)
    found = newest(Cron("@yearly"), 0, until, 2)

    assert [from_ms(tick).year for tick in found] == [2025, 2026]
    assert newest(Cron("@yearly"), until - HOUR, until, 2) == []


@settings(deadline=None)
@given(
    when=st.sampled_from([Every(1), Every(7), Every(60), Once(from_ms(100_000)), Cron("*/5 * * * * *")]),
    policy=st.sampled_from(["skip", "one", "all"]),
    limit=st.integers(1, 20),
    misfire_grace_s=st.integers(0, 30),
    jitter_s=st.integers(0, 10),
    decided=st.integers(0, 200_000),
    absence=st.integers(0, 300_000),
)
def test_it_agrees_with_a_plain_walk_over_every_tick(
    when: When, policy: CatchUp, limit: int, misfire_grace_s: int, jitter_s: int, decided: int, absence: int
) -> None:
    entry = an_entry(
        when, catch_up=policy, catch_up_limit=limit, misfire_grace_s=float(misfire_grace_s), jitter_s=float(jitter_s)
    )
    now = decided + absence
    ready = []
    tick = when.next_after(decided)
    while tick is not None and entry.fire_at(tick) <= now:
        ready.append(tick)
        tick = when.next_after(tick)
    # A tick that was delayed until now also delays the ticks behind it, and the step before may have decided it.
    punctual_from, before = now - misfire_grace_s * 1_000, decided - 11_000
    held_back = False
    while (before_tick := when.next_after(before)) is not None and before_tick <= decided:
        before = before_tick
        held_back = held_back or punctual_from <= entry.fire_at(before) <= now
    late = []
    for due in ready:
        held_back = held_back or entry.fire_at(due) >= punctual_from
        late += [] if held_back else [due]
    punctual = [due for due in ready if due not in late]
    wanted = {"skip": 0, "one": 0 if punctual else 1, "all": limit}[policy]
    chosen = late[-wanted:] if wanted else []

    planned = plan_fires(entry, decided, now)

    assert list(planned.fire) == sorted(chosen + punctual)
    assert planned.missed == len(late) - len(chosen)
    assert planned.decided == (ready[-1] if ready else decided)
    assert planned.wake_at == (None if tick is None else entry.fire_at(tick))


@settings(deadline=None)
@given(steps=st.lists(st.integers(1, 20_000), min_size=1, max_size=40), misfire_grace_s=st.integers(0, 10))
def test_however_the_rounds_fall_every_tick_is_fired_or_missed_exactly_once(
    steps: list[int], misfire_grace_s: int
) -> None:
    entry = an_entry(Every(2), catch_up="one", misfire_grace_s=float(misfire_grace_s), jitter_s=3.0)
    now = decided = fired = missed = 0
    seen: list[int] = []
    for step in steps:
        now += step
        planned = plan_fires(entry, decided, now)
        seen += planned.fire
        fired, missed, decided = fired + len(planned.fire), missed + planned.missed, planned.decided

    assert seen == sorted(set(seen))
    assert fired + missed == decided // 2_000
