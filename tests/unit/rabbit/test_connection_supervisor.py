import asyncio

import pytest

from conquiet.core.backoff import Backoff
from conquiet.errors import QueueMissingError, RabbitConnectionError
from conquiet.rabbit.connection_supervisor import ConnectionSupervisor

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


def a_supervisor(
    attempts: Attempts, max_failures: int = 3, stop: asyncio.Event | None = None
) -> ConnectionSupervisor[int]:
    return ConnectionSupervisor(attempts, backoff=AT_ONCE, max_failures=max_failures, stop=stop or asyncio.Event())


class HandSet:
    """A clock that changes only when the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def gone() -> RabbitConnectionError:
    return RabbitConnectionError("gone", reason="test")


async def test_the_first_failure_is_not_retried() -> None:
    attempts = Attempts(gone())

    with pytest.raises(RabbitConnectionError):
        await a_supervisor(attempts).first()

    assert attempts.numbers == [0]


async def test_the_first_session_is_tried_once_at_each_node() -> None:
    attempts = Attempts(gone(), gone())
    supervisor: ConnectionSupervisor[int] = ConnectionSupervisor(
        attempts, backoff=AT_ONCE, max_failures=3, stop=asyncio.Event(), nodes=3
    )

    assert await supervisor.first() == 2


async def test_no_node_at_all_is_an_error_after_one_round() -> None:
    last = gone()
    attempts = Attempts(gone(), last)

    with pytest.raises(RabbitConnectionError) as caught:
        await ConnectionSupervisor(attempts, backoff=AT_ONCE, max_failures=3, stop=asyncio.Event(), nodes=2).first()

    assert caught.value is last
    assert attempts.numbers == [0, 1]


async def test_a_missing_queue_is_not_looked_up_at_the_next_node() -> None:
    """The nodes belong to one cluster: the reply would be the same."""
    attempts = Attempts(QueueMissingError("no queue"))

    with pytest.raises(QueueMissingError):
        await ConnectionSupervisor(attempts, backoff=AT_ONCE, max_failures=3, stop=asyncio.Event(), nodes=2).first()

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
    """A queue that kills every consumer at its first message must not cause endless connections."""
    supervisor = a_supervisor(Attempts())
    await supervisor.first()
    for _ in range(3):
        await supervisor.next(made_progress=False)

    with pytest.raises(RabbitConnectionError):
        await supervisor.next(made_progress=False)


async def test_progress_resets_the_failure_count() -> None:
    supervisor = a_supervisor(Attempts())
    await supervisor.first()

    for _ in range(20):
        assert await supervisor.next(made_progress=True) is not None


@pytest.mark.parametrize(("cap_s", "enough_s"), [(0.0, 60.0), (300.0, 300.0)])
async def test_a_lasting_idle_session_resets_the_failure_count(cap_s: float, enough_s: float) -> None:
    """Losses that are days apart must not end an idle consumer."""
    clock = HandSet()
    supervisor: ConnectionSupervisor[int] = ConnectionSupervisor(
        Attempts(),
        backoff=Backoff(base_s=0.0, cap_s=cap_s),
        max_failures=3,
        stop=asyncio.Event(),
        clock=clock,
    )
    await supervisor.first()
    for _ in range(20):
        clock.now += enough_s + 1
        assert await supervisor.next(made_progress=False) is not None
    for _ in range(2):
        clock.now += enough_s
        await supervisor.next(made_progress=False)

    clock.now += enough_s
    with pytest.raises(RabbitConnectionError):
        await supervisor.next(made_progress=False)


async def test_a_stop_breaks_off_an_attempt_and_waits_for_its_end() -> None:
    stop, ended = asyncio.Event(), False

    async def silent(_: int) -> int:
        nonlocal ended
        try:
            stop.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True
        return 0

    async with asyncio.timeout(60):
        assert await ConnectionSupervisor(silent, backoff=AT_ONCE, max_failures=3, stop=stop).first() is None

    assert ended


async def test_a_cancellation_ends_the_attempt_to_connect() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def silent(_: int) -> int:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 0

    waiting = asyncio.create_task(
        ConnectionSupervisor(silent, backoff=AT_ONCE, max_failures=3, stop=asyncio.Event()).first()
    )
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert ended.is_set()


async def test_a_stop_ends_the_wait() -> None:
    stop = asyncio.Event()
    supervisor: ConnectionSupervisor[int] = ConnectionSupervisor(
        Attempts(), backoff=Backoff(base_s=600, cap_s=600), max_failures=3, stop=stop
    )
    await supervisor.first()
    asyncio.get_running_loop().call_soon(stop.set)

    async with asyncio.timeout(60):
        assert await supervisor.next(made_progress=True) is None


async def test_a_deleted_queue_is_an_error_after_six_attempts() -> None:
    attempts = Attempts(None, *[QueueMissingError("no queue") for _ in range(50)])
    supervisor = a_supervisor(attempts, max_failures=20)
    await supervisor.first()

    with pytest.raises(QueueMissingError):
        await supervisor.next(made_progress=True)

    assert len(attempts.numbers) == 1 + 6


async def test_other_failures_reset_the_count_of_missing_queues() -> None:
    """A broker that restarts may not know the queue for a moment."""
    missing = [QueueMissingError("no queue") for _ in range(5)]
    attempts = Attempts(None, *missing, gone(), *missing)
    supervisor = a_supervisor(attempts, max_failures=20)
    await supervisor.first()

    assert await supervisor.next(made_progress=True) == 12
