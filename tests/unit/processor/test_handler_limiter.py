"""The slots of a handler: in order, never more than there are, and none once it is the end."""

import asyncio

import pytest

from conquiet.processor.handler_limiter import HandlerLimiter


async def test_never_more_at_once_than_the_limit_and_first_comes_first() -> None:
    slots = HandlerLimiter(2, lambda: False)
    running, most, order = 0, 0, []

    async def work(number: int) -> None:
        nonlocal running, most
        assert await slots.acquire()
        running += 1
        most = max(most, running)
        order.append(number)
        await asyncio.sleep(0)
        running -= 1
        slots.release()

    await asyncio.gather(*(work(number) for number in range(20)))

    assert (most, order) == (2, list(range(20)))


@pytest.mark.parametrize("moment", ["waiting", "granted"])
async def test_a_cancelled_waiter_leaves_its_place_to_the_next(moment: str) -> None:
    slots = HandlerLimiter(1, lambda: False)
    assert await slots.acquire()
    gone, next_one = (asyncio.create_task(slots.acquire()) for _ in range(2))
    await asyncio.sleep(0)

    if moment == "granted":
        slots.release()
        gone.cancel()  # it does not know yet that it has the slot
    else:
        gone.cancel()
        await asyncio.sleep(0)
        slots.release()

    assert await next_one
    assert gone.cancelled()


async def test_no_start_is_given_once_the_worker_stops() -> None:
    stopping = False
    slots = HandlerLimiter(1, lambda: stopping)
    assert await slots.acquire()
    waiting = [asyncio.create_task(slots.acquire()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    stopping = True

    slots.release()

    assert not await waiting[1]
    assert not await slots.acquire()


async def test_a_wait_longer_than_the_engine_is_refused() -> None:
    slots = HandlerLimiter(1, lambda: False)
    assert await slots.acquire()
    waiting = [asyncio.create_task(slots.acquire()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()

    slots.cancel_waiters()

    assert not await waiting[1]
