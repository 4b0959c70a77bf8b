import itertools

import pytest

from conquiet.testing import polling, wait_until, wait_until_async


def test_the_truthy_answer_itself_is_returned() -> None:
    answers = iter([0, "", [7]])

    assert wait_until(lambda: next(answers), timeout_s=5) == [7]


def test_the_predicate_is_looked_at_even_without_any_time() -> None:
    assert wait_until(lambda: "now", timeout_s=0) == "now"


def test_a_timeout_says_what_was_waited_for_and_what_was_seen_last() -> None:
    with pytest.raises(
        TimeoutError, match=r"three orders: not so within 0\.02 s \(last answer: 0\); load [\d.]+ on \d+ proc"
    ):
        wait_until(lambda: 0, timeout_s=0.02, message="three orders")


def test_a_message_is_only_built_when_the_wait_failed() -> None:
    """It may be expensive: a log, a table's content."""
    built = itertools.count()

    wait_until(lambda: True, message=lambda: f"built {next(built)}")

    assert next(built) == 0


def test_a_long_wait_polls_less_often() -> None:
    """The polls take processor time from the work that is awaited."""
    assert [polling._pause_s(waited_s) for waited_s in (0, 0.2, 0.5, 1, 60)] == [0.01, 0.01, 0.025, 0.05, 0.05]


def test_a_given_interval_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("conquiet.testing.polling.time.sleep", pauses.append)
    answers = iter([0, 0, 1])

    wait_until(lambda: next(answers), interval_s=0.005)

    assert pauses == [0.005, 0.005]


def test_a_coroutine_function_is_refused_by_the_plain_variant() -> None:
    """A coroutine is truthy, so the wait would end immediately and the waiting test would prove nothing."""

    async def never() -> bool:
        return False

    with pytest.raises(TypeError, match="await wait_until_async"):
        _ = wait_until(never)


async def test_the_async_variant_takes_plain_and_coroutine_predicates() -> None:
    answers = iter([0, 5])

    async def later() -> int:
        return next(answers)

    assert await wait_until_async(later, timeout_s=5) == 5
    assert await wait_until_async(lambda: "plain", timeout_s=5) == "plain"


async def test_the_async_variant_times_out_too() -> None:
    with pytest.raises(TimeoutError, match="never"):
        await wait_until_async(lambda: None, timeout_s=0.02, message=lambda: "never")
