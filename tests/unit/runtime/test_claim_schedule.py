"""When stale entries are claimed."""

from conquiet.runtime.claim_schedule import START, ClaimSchedule


def test_claims_are_spread_over_streams_and_continue_at_their_cursor() -> None:
    schedule = ClaimSchedule(["a", "b", "c"], 4.0, rand=lambda: 0.5)
    assert schedule.due(100.0, 9, idle=True) == {}  # the first look is a quarter of the interval away
    assert schedule.next_due_s(100.0) == 1.0

    looks = schedule.due(101.0, 2, idle=True)
    assert looks == {"a": 1, "b": 1}
    schedule.record("a", "5-0", 101.0)
    schedule.record("b", START, 101.0)

    assert schedule.cursor("a") == "5-0"
    assert schedule.due(101.0, 10, idle=True) == {}  # new work has its turn first
    assert schedule.due(101.0, 10, idle=True) == {"a": 5, "c": 5}
    schedule.record("a", START, 101.0)
    schedule.record("c", START, 101.0)
    assert schedule.next_due_s(101.0) == 4.0


def test_under_load_every_fourth_round_claims() -> None:
    schedule = ClaimSchedule(["a"], 4.0, rand=lambda: 0.0)
    looks = 0
    for _ in range(40):
        if schedule.due(10.0, 4, idle=False):
            looks += 1
            schedule.record("a", "7-0", 10.0)
    assert looks == 10


def test_a_paused_stream_is_claimed_an_interval_later_from_its_cursor() -> None:
    schedule = ClaimSchedule(["a"], 4.0, rand=lambda: 0.0)
    assert schedule.due(10.0, 4, idle=True) == {"a": 4}
    schedule.record("a", "7-0", 10.0)

    schedule.postpone("a", 10.0)

    assert schedule.next_due_s(10.0) == 4.0
    assert schedule.cursor("a") == "7-0"
