"""Bisection finds the failing members of a batch, at a bounded number of calls."""

import pytest

from conquiet.core.batch_run import BatchRun, Outcome
from conquiet.errors import ConfigurationError, ConflictError, InfrastructureError, MessageInProgressError


class Effects:
    """A transaction: all members of a call have their effect, or none has."""

    def __init__(self, *poison: int) -> None:
        self.poison = set(poison)
        self.done: list[int] = []
        self.calls: list[list[int]] = []

    async def __call__(self, members: list[int]) -> None:
        self.calls.append(members)
        for member in members:
            if member in self.poison:
                raise ValueError(member)
        self.done += members


def numbers(outcomes: list[Outcome]) -> dict[int, str]:
    return {position: repr(outcome) for position, outcome in enumerate(outcomes) if outcome is not None}


async def test_members_without_a_fault_are_run_in_one_call() -> None:
    effects = Effects()

    assert await BatchRun(range(200), effects).run() == [None] * 200
    assert len(effects.calls) == 1


@pytest.mark.parametrize("poison", [0, 1, 99, 100, 137, 198, 199])
async def test_one_poison_among_200_fails_alone_and_the_others_happen_once(poison: int) -> None:
    effects = Effects(poison)

    outcomes = await BatchRun(range(200), effects).run()

    assert numbers(outcomes) == {poison: f"ValueError({poison})"}
    assert sorted(effects.done) == [one for one in range(200) if one != poison]
    assert [poison] in effects.calls  # its error is its own


async def test_no_position_of_one_poison_among_200_costs_more_than_ten_calls() -> None:
    costs = []
    for poison in range(200):
        effects = Effects(poison)
        await BatchRun(range(200), effects).run()
        costs.append(len(effects.calls) - 1)

    assert max(costs) <= 10
    assert sorted(costs)[100] <= 10


@pytest.mark.parametrize("poison", [(0, 1), (3, 150), (10, 11, 12, 199), tuple(range(0, 200, 7))])
async def test_every_one_of_several_poisons_fails_alone(poison: tuple[int, ...]) -> None:
    effects = Effects(*poison)

    outcomes = await BatchRun(range(200), effects).run()

    assert numbers(outcomes) == {one: f"ValueError({one})" for one in poison}
    assert sorted(effects.done) == [one for one in range(200) if one not in poison]
    assert all([one] in effects.calls for one in poison)


async def test_a_batch_of_poison_costs_three_calls_a_member_at_most() -> None:
    effects = Effects(*range(200))

    outcomes = await BatchRun(range(200), effects).run()

    assert len(numbers(outcomes)) == 200
    assert len(effects.calls) < 600


async def test_an_unavailable_server_is_no_members_fault() -> None:
    calls = []

    async def call(members: list[int]) -> None:
        calls.append(members)
        if len(members) < 4:
            raise InfrastructureError("away")
        raise ValueError(members)

    outcomes = await BatchRun(range(8), call).run()

    assert all(isinstance(outcome, InfrastructureError) for outcome in outcomes)
    assert len(calls) == 3  # the server was not called again after it became unavailable


async def test_a_conflict_is_met_by_the_same_members_once_more() -> None:
    calls = []

    async def call(members: list[int]) -> None:
        calls.append(members)
        if len(calls) == 1:
            raise ConflictError("deadlock")

    assert await BatchRun(range(5), call).run() == [None] * 5
    assert calls == [[0, 1, 2, 3, 4]] * 2


async def test_a_member_whose_run_is_in_progress_elsewhere_keeps_no_other_waiting() -> None:
    calls = []

    async def call(members: list[int]) -> None:
        calls.append(members)
        if 3 in members:
            raise MessageInProgressError("held by another run")

    outcomes = await BatchRun(range(5), call).run()

    assert list(numbers(outcomes)) == [3]
    assert calls[1:] == [[0], [1], [2], [3], [4]]


async def test_a_member_that_loses_its_lease_is_taken_out() -> None:
    lost: set[int] = set()
    calls = []

    async def call(members: list[int]) -> None:
        calls.append(members)
        lost.add(2)
        if 2 in members:
            raise KeyError("the check before COMMIT")

    outcomes = await BatchRun(
        range(4), call, lost=lambda member: RuntimeError("lost") if member in lost else None
    ).run()

    assert numbers(outcomes) == {2: "RuntimeError('lost')"}
    assert calls == [[0, 1, 2, 3], [0, 1, 3]]


async def test_outcomes_that_a_call_returns_are_taken_as_they_are() -> None:
    failure = ValueError("one of three")

    async def call(members: list[int]) -> list[Outcome]:
        return [failure if member == 1 else None for member in members]

    assert await BatchRun(range(3), call).run() == [None, failure, None]


async def test_a_list_of_outcomes_that_does_not_fit_is_a_failure() -> None:
    async def call(members: list[int]) -> list[Outcome]:
        return [*([None] * len(members)), ValueError("one too many")]

    outcomes = await BatchRun(range(2), call).run()

    assert all(isinstance(outcome, ConfigurationError) for outcome in outcomes)
