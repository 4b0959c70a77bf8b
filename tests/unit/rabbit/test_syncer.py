import functools
import numbers
from typing import Any

import pytest

from conquiet.rabbit.syncer import ContractBroken, Done, Refused, broken_by, is_async, judge


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


def plain(_: object) -> bool:
    return True


@functools.wraps(plain)
async def coroutine_around_plain(_: object) -> bool:
    return True


async def coroutine(_: object) -> bool:
    return True


class AsyncObject:
    async def __call__(self, _: object) -> bool:
        return True


class PlainObject:
    def __call__(self, _: object) -> bool:
        return True


@functools.wraps(coroutine)
def plain_around_coroutine(message: object) -> Any:
    return coroutine(message)


@pytest.mark.parametrize(
    ("syncer", "expected"),
    [
        (coroutine, True),
        (functools.partial(coroutine), True),
        (coroutine_around_plain, True),
        (plain_around_coroutine, True),
        (AsyncObject(), True),
        (AsyncObject().__call__, True),
        (PlainObject(), False),
        (lambda _: True, False),
        (functools.partial(bool), False),
    ],
)
def test_coroutine_functions_are_recognised(syncer: Any, *, expected: bool) -> None:
    assert is_async(syncer) is expected
