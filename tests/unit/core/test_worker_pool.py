"""The pool alone: never more than its limit, no task per item, nothing left over."""

import asyncio
import contextvars
import math
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from conquiet.core.worker_pool import WorkerPool, start_in_context
from conquiet.testing import wait_until_async


def make_pool(limit: int, work: Callable[[int], Awaitable[None]]) -> WorkerPool[int]:
    pool = WorkerPool(limit, work, on_free=lambda: None)
    pool.start()
    return pool


@pytest.mark.spec("CM-001.6", "CM-001.7")
async def test_the_limit_is_reached_and_never_exceeded() -> None:
    highest = done = 0

    async def work(item: int) -> None:
        nonlocal highest, done
        highest = max(highest, pool.active)
        await asyncio.sleep(0.001 * (item % 3))
        done += 1

    pool = make_pool(7, work)
    pool.put(list(range(200)))
    await pool.wait_idle()
    await pool.close()

    assert (highest, done) == (7, 200)


@pytest.fixture
def endless_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends after milliseconds, and a busy machine may take the processor away for as long as that."""
    monkeypatch.setattr("conquiet.core.worker_pool._SLICE_S", math.inf)


@pytest.mark.usefixtures("endless_turns")
async def test_items_that_never_suspend_are_run_by_one_worker() -> None:
    workers = set()

    async def work(item: int) -> None:
        workers.add(asyncio.current_task())

    pool = make_pool(50, work)
    await asyncio.sleep(0)
    pool.put(list(range(500)))
    await pool.wait_idle()
    await pool.close()

    assert len(workers) == 1


@pytest.mark.usefixtures("endless_turns")
async def test_the_fetcher_runs_when_the_queue_shrinks_to_the_mark() -> None:
    """Otherwise handlers that never wait empty the store in one go, and nothing is on its way meanwhile."""
    left_at_turn: list[int] = []

    async def work(item: int) -> None:
        pass

    def fetch() -> None:
        asyncio.get_running_loop().call_soon(lambda: left_at_turn.append(pool.waiting))

    pool = WorkerPool(3, work, on_free=fetch)
    pool.start()
    await asyncio.sleep(0)
    left_at_turn.clear()
    pool.notify_below(40)
    pool.put(list(range(100)))
    await pool.wait_idle()
    await pool.close()

    assert left_at_turn[0] == 40


async def test_an_item_that_blocks_lets_the_others_have_their_turn() -> None:
    """The worker that got stuck behind a waiting handler must not keep what is queued behind it."""
    leave = asyncio.Event()
    done: list[int] = []

    async def work(item: int) -> None:
        if item == 0:
            await leave.wait()
        done.append(item)

    pool = make_pool(2, work)
    await asyncio.sleep(0)
    pool.put(list(range(10)))
    await wait_until_async(lambda: len(done) == 9)
    leave.set()
    await pool.wait_idle()
    await pool.close()

    assert done == [*range(1, 10), 0]


async def test_on_hold_nothing_is_begun_and_what_waits_can_be_taken_back() -> None:
    leave = asyncio.Event()
    begun: list[int] = []

    async def work(item: int) -> None:
        begun.append(item)
        await leave.wait()

    pool = make_pool(2, work)
    pool.put(list(range(10)))
    await wait_until_async(lambda: len(begun) == 2)
    pool.pause()
    pool.put([10, 11])
    leave.set()
    await pool.wait_idle()
    back = pool.drain_queue()
    await pool.close()

    assert begun == [0, 1]
    assert back == list(range(2, 12))
    assert pool.in_flight == 0


async def test_a_failed_or_cancelled_item_does_not_end_its_worker() -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        if item == 0:
            raise RuntimeError
        if item == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
        done.append(item)

    pool = make_pool(1, work)
    pool.put([0, 1, 2])
    await pool.wait_idle()
    stubborn = await pool.close()

    assert (done, stubborn) == ([2], 0)


async def test_a_cancellation_ends_with_the_work_it_was_meant_for() -> None:
    """A separate task would end with its cancellation. Here the next item runs in the same task."""
    seen: list[tuple[int, int]] = []

    async def work(item: int) -> None:
        slot = asyncio.current_task()
        assert slot is not None
        seen.append((item, slot.cancelling()))
        match item % 4:
            case 0:
                await asyncio.sleep(0)
            case 1:  # and never waits: it is still to be raised
                slot.cancel()
            case 2:  # raised, and dealt with
                slot.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(0)
            case _:  # requested twice, raised once
                slot.cancel()
                slot.cancel()
                await asyncio.sleep(0)
        seen.append((item, -1))

    pool = make_pool(1, work)
    pool.put(list(range(9)))
    await asyncio.wait_for(pool.wait_idle(), 60)
    await pool.close()

    ends = [(item, -1) for item in range(9) if item % 4 != 3]
    assert seen == sorted([*((item, 0) for item in range(9)), *ends], key=lambda one: (one[0], -one[1]))


async def test_cancel_running_returns_the_cancelled_items_and_keeps_the_workers() -> None:
    done: list[int] = []
    entered = asyncio.Event()

    async def work(item: int) -> None:
        if item < 2:
            entered.set()
            await asyncio.sleep(60)
        done.append(item)

    pool = make_pool(2, work)
    pool.put([0, 1])
    await entered.wait()
    await wait_until_async(lambda: pool.active == 2)

    assert sorted(pool.cancel_running()) == [0, 1]
    await pool.wait_idle()
    pool.put([2])
    await pool.wait_idle()
    await pool.close()
    assert done == [2]


async def test_workers_that_were_not_closed_end_with_their_loop() -> None:
    async def start() -> WorkerPool[int]:
        pool = make_pool(2, lambda _: asyncio.sleep(0))
        await asyncio.sleep(0)
        return pool

    pool = await asyncio.create_task(start())
    for slot in pool._workers:  # as an event loop does that ends
        slot.cancel()
    _, left = await asyncio.wait(pool._workers, timeout=10)
    await pool.close()

    assert not left


async def test_work_that_refuses_to_be_cancelled_does_not_hang_the_close() -> None:
    release = asyncio.Event()
    entered = asyncio.Event()

    async def work(item: int) -> None:
        entered.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    pool = make_pool(1, work)
    pool.put([0])
    await entered.wait()
    assert await pool.close(timeout_s=0.05) == 1
    release.set()
    await asyncio.gather(*pool._workers, return_exceptions=True)


async def test_a_coroutine_that_never_suspends_ends_at_once_without_leaking_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    seen: list[int] = []

    async def sets() -> None:
        variable.set(1)
        seen.append(variable.get())

    async def fails() -> None:
        variable.set(2)
        raise KeyError("x")

    assert start_in_context(sets()) is None
    assert seen == [1]
    with pytest.raises(KeyError):
        start_in_context(fails())
    assert variable.get() == 0


async def test_isolated_keeps_context_values_errors_and_cancellations_straight() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    cleaned: list[bool] = []

    async def sets() -> None:
        variable.set(1)
        await asyncio.sleep(0)
        assert variable.get() == 1

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def isolated(coroutine: Coroutine[Any, Any, None]) -> None:
        rest = start_in_context(coroutine)
        assert rest is not None
        await rest

    await isolated(sets())
    assert variable.get() == 0
    with pytest.raises(KeyError):
        await isolated(fails())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await isolated(waits())
    assert cleaned == [True]


async def test_a_handler_that_suspends_begins_a_new_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop ran while the handler was suspended, so another yield would only cost time."""
    monkeypatch.setattr("conquiet.core.worker_pool._SLICE_S", 0.02)
    turns = 0

    async def work(_: int) -> None:
        nonlocal turns
        turns += 1
        await asyncio.sleep(0.03)

    freed: list[int] = []
    pool: WorkerPool[int] = WorkerPool(
        1, lambda item: start_in_context(work(item)), on_free=lambda: freed.append(turns)
    )
    pool.start()
    pool.put([1, 2, 3])
    await asyncio.sleep(0)  # the first handler runs
    freed.clear()
    await pool.wait_idle()
    assert freed == [3, 3]  # when the last one has started and when it has ended, not between two handlers
    await pool.close()


async def test_awaited_items_that_never_suspend_let_the_loop_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was delivered before is awaited, even if its handler does not suspend."""
    now_s = 0.0
    monkeypatch.setattr("conquiet.core.worker_pool.time", SimpleNamespace(monotonic=lambda: now_s))
    loop = asyncio.get_running_loop()
    turns = 0
    turns_at: list[int] = []

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(turns_at) < 10:
            loop.call_soon(turn)

    async def work(_: int) -> None:
        nonlocal now_s
        now_s += 0.003
        turns_at.append(turns)

    pool = make_pool(1, work)
    await asyncio.sleep(0)
    loop.call_soon(turn)
    pool.put(list(range(10)))
    await pool.wait_idle()
    await pool.close()

    assert len(set(turns_at)) == 5, "after every second item, more than 5 ms have passed"
