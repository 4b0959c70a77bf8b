"""The amount that the fetchers of one pool may fetch."""

from hypothesis import given
from hypothesis import strategies as st

from conquiet.runtime.fetch_budget import FetchBudget


def test_a_lone_fetcher_may_use_the_whole_budget() -> None:
    budget = FetchBudget(10, 5, 1)

    assert budget.available("a", 0, 5) == 15
    assert budget.available("a", 0, 0) == 10
    assert budget.available("a", 12, 5) == 3
    assert budget.available_for_wait("a", 12) == 3
    assert budget.available_for_wait("a", 0) == 15
    assert budget.may_block


def test_a_waiting_read_reserves_little_and_keeps_no_worker_from_work() -> None:
    budget = FetchBudget(10, 6, 3)
    for fetcher in ("b", "c"):
        budget.reserve(fetcher, budget.available_for_wait(fetcher, 0), waiting=True)

    assert budget.available("a", 0, 0) == 10
    assert budget.available("a", 0, 6) == 12
    assert FetchBudget(10, 0, 2).available_for_wait("a", 0) == 1
    assert not FetchBudget(1, 5, 3).is_oversubscribed


def test_a_worker_that_another_fetcher_reads_for_is_not_filled_twice() -> None:
    budget = FetchBudget(10, 6, 2)
    budget.reserve("b", 4, waiting=False)

    assert budget.available("a", 3, 0) == 3


def test_the_fetcher_that_has_waited_longest_gets_the_only_worker() -> None:
    budget = FetchBudget(1, 0, 3)
    budget.reserve("a", budget.available("a", 0, 0), waiting=False)
    assert (budget.available("b", 0, 0), budget.available("c", 0, 0)) == (0, 0)
    budget.release("a")

    assert budget.available("a", 0, 0) == 0
    assert budget.available("c", 0, 0) == 0
    assert budget.available("b", 0, 0) == 1


def test_a_fetcher_that_left_is_not_waited_for() -> None:
    budget = FetchBudget(1, 0, 2)
    budget.reserve("a", 1, waiting=False)
    assert budget.available("b", 0, 0) == 0
    budget.remove("b")
    budget.release("a")

    assert budget.available("a", 0, 0) == 1


def test_fetchers_block_in_turn_only_after_an_empty_round() -> None:
    budget = FetchBudget(1, 0, 2)
    may_block = [budget.may_block]
    for found in (0, 0, 1, 0):
        budget.record(found)
        may_block.append(budget.may_block)

    assert may_block == [False, False, True, False, False]


@given(
    concurrency=st.integers(1, 20),
    prefetch=st.integers(0, 20),
    steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["read", "wait", "come", "finish"])), max_size=80),
)
def test_never_more_is_in_flight_or_reserved_than_concurrency_and_prefetch(
    concurrency: int, prefetch: int, steps: list[tuple[int, str]]
) -> None:
    budget = FetchBudget(concurrency, prefetch, 5)
    in_flight = 0
    on_the_way: dict[int, int] = {}
    for fetcher, step in steps:
        if step == "come":
            in_flight += on_the_way.pop(fetcher, 0)
            budget.release(fetcher)
        elif step == "finish":
            in_flight = max(0, in_flight - 1)
        elif fetcher not in on_the_way:
            share = (
                budget.available(fetcher, in_flight, prefetch // 2)
                if step == "read"
                else budget.available_for_wait(fetcher, in_flight)
            )
            if share > 0:
                budget.reserve(fetcher, share, waiting=step == "wait")
                on_the_way[fetcher] = share
        assert in_flight + sum(on_the_way.values()) <= concurrency + prefetch
