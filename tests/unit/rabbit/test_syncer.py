import numbers
from typing import Any

import pytest

from conquiet.rabbit.syncer import ContractBroken, Done, Refused, interpret_error, interpret_result


@pytest.mark.spec("MW-004.2", "MW-004.3", "MW-004.4")
def test_the_two_booleans_are_the_two_outcomes() -> None:
    assert interpret_result(True) == Done()  # noqa: FBT003
    assert interpret_result(False) == Refused()  # noqa: FBT003


@pytest.mark.spec("MW-004.2", "MW-004.6")
@pytest.mark.parametrize("result", [None, 1, 0, "true", "", [], {"processed": True}, object(), 1.0, numbers.Number])
def test_anything_else_breaks_the_contract(result: Any) -> None:
    outcome = interpret_result(result)

    assert isinstance(outcome, ContractBroken)
    assert "must return True or False" in outcome.reason


def test_a_forgotten_async_is_named() -> None:
    async def forgotten() -> bool:
        return True

    outcome = interpret_result(forgotten())

    assert isinstance(outcome, ContractBroken)
    assert "async def" in outcome.reason


@pytest.mark.spec("MW-004.5")
def test_an_exception_is_named_by_its_type_only() -> None:
    outcome = interpret_error(ValueError("jane@example.org"))

    assert isinstance(outcome, ContractBroken)
    assert outcome.reason == "the syncer raised ValueError"
    assert "jane" not in repr(outcome)
    assert isinstance(outcome.error, ValueError)
