"""Items that come up while a batch is being sent go out together."""

import asyncio

import pytest

from conquiet.core.micro_batcher import MicroBatcher


async def test_items_of_one_iteration_are_one_batch_and_later_ones_the_next() -> None:
    batches: list[list[int]] = []
    sent = asyncio.Event()

    async def flush(batch: list[int]) -> None:
        batches.append(batch)
        await sent.wait()

    batcher: MicroBatcher[int] = MicroBatcher(flush, name="test")
    batcher.add(1)
    batcher.add(2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    batcher.add(3)
    batcher.add(4)
    sent.set()
    await batcher.drain()

    assert batches == [[1, 2], [3, 4]]
    assert (len(batcher), batcher.is_flushing) == (0, False)


async def test_a_batch_is_never_larger_than_its_limit() -> None:
    batches: list[list[int]] = []

    async def flush(batch: list[int]) -> None:
        batches.append(batch)

    batcher: MicroBatcher[int] = MicroBatcher(flush, limit=2, name="test")
    for number in range(5):
        batcher.add(number)
    await batcher.drain()

    assert batches == [[0, 1], [2, 3], [4]]


async def test_items_taken_by_another_sender_are_not_flushed() -> None:
    async def flush(batch: list[int]) -> None:
        raise AssertionError

    batcher: MicroBatcher[int] = MicroBatcher(flush, name="test")
    batcher.add(1)
    batcher.held = True
    batcher.add(2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert batcher.take() == [1, 2]
    assert not batcher.is_flushing


async def test_requeued_items_come_before_all_others() -> None:
    batches: list[list[int]] = []

    async def flush(batch: list[int]) -> None:
        batches.append(batch)
        if len(batches) == 1:
            batcher.add(2)
            batcher.requeue(batch)

    batcher: MicroBatcher[int] = MicroBatcher(flush, name="test")
    batcher.add(1)
    await batcher.drain()

    assert batches == [[1], [1, 2]]


async def test_an_error_reaches_those_who_drain_and_the_next_item_starts_again() -> None:
    failures = [LookupError()]
    batches: list[list[int]] = []

    async def flush(batch: list[int]) -> None:
        if failures:
            raise failures.pop()
        batches.append(batch)

    batcher: MicroBatcher[int] = MicroBatcher(flush, name="test")
    batcher.add(1)
    with pytest.raises(LookupError):
        await batcher.drain()
    batcher.add(2)
    await batcher.drain()

    assert batches == [[2]]


async def test_closing_cancels_the_flush_and_returns_what_is_due() -> None:
    async def flush(batch: list[int]) -> None:
        await asyncio.Event().wait()

    batcher: MicroBatcher[int] = MicroBatcher(flush, limit=1, name="test")
    batcher.add(1)
    batcher.add(2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert await batcher.close() == [2]
    assert not batcher.is_flushing
