import numbers
from typing import Any

import pytest

from conquiet.rabbit.syncer import ContractBroken, Done, Refused, broken_by, judge


@pytest.mark.spec("MW-004.2", "MW-004.3", "MW-004.4")
def test_the_two_booleans_are_the_two_outcomes() -> None:
    assert judge(True) == Done()  # noqa: FBT003
    assert judge(False) == Refused()  # noqa: FBT003


@pytest.mark.spec("MW-004.2", "MW-004.6")
@pytest.mark.parametrize("result", [None, 1, 0, "true", "", [], {"processed": True}, object(), 1.0, numbers.Number])
def test_anything_else_breaks_the_contract(result: Any) -> None:
    outcome = judge(result)

    assert isinstance(outcome, ContractBroken)
    assert "must return True or False" in outcome.reason


def test_a_forgotten_async_is_named() -> None:
    async def forgotten() -> bool:
        return True

    outcome = judge(forgotten())

    assert isinstance(outcome, ContractBroken)
    assert "async def" in outcome.reason


@pytest.mark.spec("MW-004.5")
def test_what_was_raised_is_named_by_its_type_only() -> None:
    outcome = broken_by(ValueError("jane@example.org"))

    assert outcome.reason == "the syncer raised ValueError"
    assert "jane" not in repr(outcome)
    assert isinstance(outcome.error, ValueError)
