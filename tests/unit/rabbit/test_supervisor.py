import asyncio

import pytest

from conquiet.errors import QueueMissingError, RabbitConnectionError
from conquiet.kernel.backoff import Backoff
from conquiet.rabbit.supervisor import Supervisor

AT_ONCE = Backoff(base_s=0.0, cap_s=0.0, jitter=0.0)


class Attempts:
    """Fails with the given errors, then succeeds with the number of the attempt."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.numbers: list[int] = []

    async def __call__(self, number: int) -> int:
        self.numbers.append(number)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return number


def a_supervisor(attempts: Attempts, max_failures: int = 3, stop: asyncio.Event | None = None) -> Supervisor[int]:
    return Supervisor(attempts, backoff=AT_ONCE, max_failures=max_failures, stop=stop or asyncio.Event())


def gone() -> RabbitConnectionError:
    return RabbitConnectionError("gone", reason="test")


async def test_the_first_failure_is_not_retried() -> None:
    attempts = Attempts(gone())

    with pytest.raises(RabbitConnectionError):
        await a_supervisor(attempts).first()

    assert attempts.numbers == [0]


async def test_a_lost_session_is_replaced_after_failures() -> None:
    attempts = Attempts(None, gone(), QueueMissingError("not yet"))
    supervisor = a_supervisor(attempts)

    assert await supervisor.first() == 0
    assert await supervisor.next(made_progress=True) == 3


async def test_too_many_failures_in_a_row_are_an_error_with_its_cause() -> None:
    last = gone()
    attempts = Attempts(None, gone(), gone(), last)
    supervisor = a_supervisor(attempts)
    await supervisor.first()

    with pytest.raises(RabbitConnectionError, match="gave up") as caught:
        await supervisor.next(made_progress=True)

    assert caught.value.__cause__ is last
    assert len(attempts.numbers) == 4


async def test_a_queue_that_stays_away_is_named_as_the_reason() -> None:
    supervisor = a_supervisor(Attempts(None, *[QueueMissingError("no queue") for _ in range(3)]))
    await supervisor.first()

    with pytest.raises(QueueMissingError):
        await supervisor.next(made_progress=True)


async def test_sessions_that_settle_nothing_count_as_failures() -> None:
    """A queue that kills every consumer at its first message must not make us connect for ever."""
    supervisor = a_supervisor(Attempts())
    await supervisor.first()
    for _ in range(3):
        await supervisor.next(made_progress=False)

    with pytest.raises(RabbitConnectionError):
        await supervisor.next(made_progress=False)


async def test_progress_starts_the_count_anew() -> None:
    supervisor = a_supervisor(Attempts())
    await supervisor.first()

    for _ in range(20):
        assert await supervisor.next(made_progress=True) is not None


async def test_a_stop_ends_the_wait() -> None:
    stop = asyncio.Event()
    supervisor: Supervisor[int] = Supervisor(
        Attempts(), backoff=Backoff(base_s=60, cap_s=60), max_failures=3, stop=stop
    )
    await supervisor.first()
    asyncio.get_running_loop().call_soon(stop.set)

    async with asyncio.timeout(5):
        assert await supervisor.next(made_progress=True) is None
