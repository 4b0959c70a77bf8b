"""When a batch is delivered, and how large it is."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

import pytest
from tests.unit.core.clocked_loop import ClockedLoop

from conquiet.core.batching import KEPT, LARGEST, BatchAssembler, BatchSettings, BatchTimes, batch_settings
from conquiet.errors import ConfigurationError

Delivered = list[tuple[Hashable, list[int]]]


def an_assembler(delivered: Delivered, *, free: list[bool] | None = None) -> BatchAssembler[int]:
    workers = [True] if free is None else free
    return BatchAssembler(lambda key, items, _due_at: delivered.append((key, items)), lambda: workers[0])


async def test_a_full_batch_is_delivered_at_once() -> None:
    delivered: Delivered = []
    assembler = an_assembler(delivered)

    for number in range(7):
        assembler.add("a", number, size=3, within_s=60.0)

    assert delivered == [("a", [0, 1, 2]), ("a", [3, 4, 5])]
    assert len(assembler) == 1
    assert assembler.take() == [6]


async def test_a_partial_batch_is_delivered_when_its_time_is_over() -> None:
    delivered: Delivered = []
    assembler = an_assembler(delivered)

    assembler.add("a", 1, size=3, within_s=0.0)
    assembler.add("b", 2, size=3, within_s=60.0)
    await asyncio.sleep(0.01)

    assert delivered == [("a", [1])]
    assert assembler.take() == [2]


async def test_a_batch_continues_to_grow_while_no_worker_is_free() -> None:
    delivered: Delivered = []
    free = [False]
    assembler = an_assembler(delivered, free=free)

    assembler.add("a", 1, size=3, within_s=0.0)
    await asyncio.sleep(0.01)
    assembler.add("a", 2, size=3, within_s=0.0)
    assert delivered == []

    free[0] = True
    assembler.deliver_due()
    assert delivered == [("a", [1, 2])]


async def test_taken_items_are_not_delivered_later() -> None:
    delivered: Delivered = []
    assembler = an_assembler(delivered)
    assembler.add("a", 1, size=3, within_s=0.0)

    assert assembler.take() == [1]
    await asyncio.sleep(0.01)
    assert delivered == []


def test_each_delivery_halves_the_batch_until_a_message_is_alone() -> None:
    sizes = [BatchSettings(200).size_at(deliveries) for deliveries in range(1, 11)]

    assert sizes == [200, 100, 50, 25, 12, 6, 3, 1, 1, 1]


@pytest.mark.parametrize(("batch", "within_s"), [(0, None), (-1, None), (LARGEST + 1, None), (2, -0.1), (None, 0.1)])
def test_settings_that_make_no_sense_are_refused(batch: int | None, within_s: float | None) -> None:
    with pytest.raises(ConfigurationError):
        batch_settings(batch, within_s)


Dues = list[float | None]


def with_clock(test: Callable[[ClockedLoop, BatchAssembler[int], Dues], Coroutine[Any, Any, None]]) -> None:
    """Run a test with an assembler of batches of three, and when each delivered batch was due."""
    loop = ClockedLoop()
    dues: Dues = []
    try:
        assembler: BatchAssembler[int] = BatchAssembler(lambda _key, _items, due_at: dues.append(due_at), lambda: True)
        loop.run_until_complete(test(loop, assembler, dues))
    finally:
        loop.close()


async def run_batch(loop: ClockedLoop, assembler: BatchAssembler[int], dues: Dues, *, took_s: float) -> float:
    """Gather one item with ``within_s`` of 20 ms, run its batch; return how long it has gathered."""
    began, before = loop.now, len(dues)
    assembler.add("a", 1, size=3, within_s=0.02)
    while len(dues) == before:
        await loop.pass_time(0.0005)
    gathered_s = loop.now - began
    loop.now += took_s
    assembler.ended("a", dues[-1])
    return gathered_s


def test_a_batch_closes_earlier_by_as_long_as_batches_take() -> None:
    async def test(loop: ClockedLoop, assembler: BatchAssembler[int], dues: Dues) -> None:
        first = await run_batch(loop, assembler, dues, took_s=0.004)
        second = await run_batch(loop, assembler, dues, took_s=0.001)
        third = await run_batch(loop, assembler, dues, took_s=0.001)

        assert first == pytest.approx(0.02, abs=0.001)  # nothing is known yet
        assert second == third == pytest.approx(0.016, abs=0.001)  # the longest counts, not the last one

    with_clock(test)


def test_a_batch_of_another_handler_does_not_close_earlier() -> None:
    async def test(loop: ClockedLoop, assembler: BatchAssembler[int], dues: Dues) -> None:
        await run_batch(loop, assembler, dues, took_s=0.004)

        assembler.add("b", 1, size=3, within_s=0.02)
        await loop.pass_time(0.019)
        assert len(dues) == 1
        await loop.pass_time(0.001)
        assert len(dues) == 2

    with_clock(test)


def test_a_batch_gathers_for_half_of_its_time_however_slow_batches_are() -> None:
    async def test(loop: ClockedLoop, assembler: BatchAssembler[int], dues: Dues) -> None:
        await run_batch(loop, assembler, dues, took_s=3.0)

        assert await run_batch(loop, assembler, dues, took_s=3.0) == pytest.approx(0.01, abs=0.001)

    with_clock(test)


def test_a_full_batch_says_nothing_about_batches_that_wait() -> None:
    async def test(loop: ClockedLoop, assembler: BatchAssembler[int], dues: Dues) -> None:
        assembler.add_many("a", [1, 2, 3], size=3, within_s=0.02)
        assert dues == [None]
        loop.now += 0.008
        assembler.ended("a", None)

        assert await run_batch(loop, assembler, dues, took_s=0.0) == pytest.approx(0.02, abs=0.001)

    with_clock(test)


def test_waiting_for_a_worker_does_not_close_later_batches_earlier() -> None:
    loop = ClockedLoop()
    dues: Dues = []
    free = [False]
    assembler: BatchAssembler[int] = BatchAssembler(lambda _key, _items, due_at: dues.append(due_at), lambda: free[0])

    async def test() -> None:
        assembler.add("a", 1, size=3, within_s=0.02)
        await loop.pass_time(0.05)  # due for 30 ms, and no worker is free
        free[0] = True
        assembler.deliver_due()
        loop.now += 0.002
        assembler.ended("a", dues[-1])

        assert await run_batch(loop, assembler, dues, took_s=0.0) == pytest.approx(0.018, abs=0.001)

    try:
        loop.run_until_complete(test())
    finally:
        loop.close()


def test_only_the_last_batches_decide_how_long_the_next_gathers() -> None:
    times = BatchTimes()
    times.record(0.008)
    for _ in range(KEPT - 1):
        times.record(0.001)
    assert times.gathering_s(0.02) == pytest.approx(0.012)

    times.record(0.001)
    assert times.gathering_s(0.02) == pytest.approx(0.019)


async def test_many_items_fill_one_batch_after_the_other() -> None:
    delivered: Delivered = []
    assembler = an_assembler(delivered)

    assembler.add_many("a", [0], size=3, within_s=60.0)
    assembler.add_many("a", [1, 2, 3, 4, 5, 6], size=3, within_s=60.0)

    assert delivered == [("a", [0, 1, 2]), ("a", [3, 4, 5])]
    assert assembler.take() == [6]
