"""The streams that are read next, and the amount from each. No server."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.runtime.stream_scheduler import ReadRequest, StreamScheduler, prefetch_now

NAMES = [f"s{number}" for number in range(10)]


def total(requests: list[ReadRequest]) -> int:
    return sum(len(request.streams) * request.each for request in requests)


def play(scheduler: StreamScheduler, backlog: dict[str, int], budget: int, turns: int) -> Counter[str]:
    """Serve from backlogs as a server would."""
    served: Counter[str] = Counter()
    for _ in range(turns):
        requests = scheduler.plan(budget)
        found = {}
        for request in requests:
            for stream in request.streams:
                found[stream] = min(request.each, backlog[stream])
                backlog[stream] -= found[stream]
        served.update(found)
        scheduler.record(requests, found)
    return served


def test_a_single_stream_gets_the_whole_budget() -> None:
    assert StreamScheduler(["s"]).plan(37) == [ReadRequest(("s",), 37)]


@given(st.integers(1, 10), st.integers(1, 300), st.lists(st.sets(st.sampled_from(NAMES)), max_size=8))
def test_no_plan_takes_more_than_the_budget(streams: int, budget: int, fulls: list[set[str]]) -> None:
    scheduler = StreamScheduler(NAMES[:streams], {"s3": 2})
    for full in fulls:
        requests = scheduler.plan(budget)
        assert 1 <= total(requests) <= budget
        named = [stream for request in requests for stream in request.streams]
        assert len(named) == len(set(named))
        scheduler.record(
            requests,
            {stream: request.each if stream in full else 0 for request in requests for stream in request.streams},
        )
    assert len(scheduler.plan_wait(budget).streams) == min(budget, streams)


@pytest.mark.spec("CM-001.5")
@pytest.mark.parametrize("budget", [1, 2, 5, 40])
def test_no_stream_starves_because_of_a_flooded_one(budget: int) -> None:
    backlog = dict.fromkeys(NAMES, 5) | {"s0": 1_000_000}

    served = play(StreamScheduler(NAMES), backlog, budget, turns=120)

    assert all(served[name] == 5 for name in NAMES[1:])
    assert served["s0"] > 0.2 * 120 * budget


def test_equal_backlogs_are_served_equally() -> None:
    served = play(StreamScheduler(NAMES), dict.fromkeys(NAMES, 1_000_000), budget=7, turns=1_000)

    assert max(served.values()) < 1.1 * min(served.values())


def test_a_higher_level_has_most_of_the_budget_while_it_is_full() -> None:
    served = play(StreamScheduler(["low", "high"], {"high": 1}), {"low": 10**6, "high": 10**6}, budget=40, turns=200)

    assert 2.5 < served["high"] / served["low"] < 3.5


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 8, 16, 50])
def test_lower_levels_get_a_quarter_whatever_the_capacity(budget: int) -> None:
    served = play(StreamScheduler(["low", "high"], {"high": 1}), dict.fromkeys(("low", "high"), 10**9), budget, 400)

    assert abs(served["low"] - served.total() / 4) <= budget + 2


@pytest.mark.parametrize("budget", [1, 2, 4, 9])
def test_the_quarter_is_not_spent_on_empty_lower_streams(budget: int) -> None:
    backlog = {"high": 10**9, "low": 10**9} | {f"idle{number}": 0 for number in range(20)}

    served = play(StreamScheduler(list(backlog), {"high": 2, "low": 0, "idle1": 1, "idle2": 1}), backlog, budget, 800)

    assert 0.23 < served["low"] / served.total() < 0.27


def test_a_waiting_higher_message_is_found_despite_a_full_lower_stream() -> None:
    backlog = {"low": 10**9, "high": 0}
    scheduler = StreamScheduler(["low", "high"], {"high": 1})
    play(scheduler, backlog, budget=1, turns=20)

    served = play(scheduler, backlog | {"high": 1}, budget=1, turns=2)

    assert served["high"] == 1


def test_a_full_stream_among_empty_ones_gets_most_of_the_budget() -> None:
    names = [f"s{number}" for number in range(100)]
    served = play(StreamScheduler(names), dict.fromkeys(names, 0) | {"s5": 10**6}, budget=128, turns=100)

    assert served["s5"] > 90 * 128 * 0.7


def test_waiting_begins_only_when_all_streams_were_empty() -> None:
    scheduler = StreamScheduler(NAMES)
    seen = []
    for _ in range(4):
        scheduler.record(scheduler.plan(3), {})
        seen.append(scheduler.all_were_empty)
    scheduler.record([ReadRequest(("s1",), 5)], {"s1": 1})

    assert seen == [False, False, False, True]
    assert (scheduler.all_were_empty, scheduler.any_full) == (False, False)


@pytest.mark.parametrize(
    ("average_s", "expected"), [(0.0, 128), (0.000_01, 128), (0.01, 5), (0.1, 0), (60.0, 0), (1_000.0, 0)]
)
def test_only_what_starts_soon_is_prefetched(average_s: float, expected: int) -> None:
    assert prefetch_now(average_s, 1, 128) == expected
