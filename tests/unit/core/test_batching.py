"""When a batch is delivered, and how large it is."""

import asyncio
from collections.abc import Hashable

import pytest

from conquiet.core.batching import LARGEST, BatchAssembler, BatchSettings, batch_settings
from conquiet.errors import ConfigurationError

Delivered = list[tuple[Hashable, list[int]]]


def an_assembler(delivered: Delivered, *, free: list[bool] | None = None) -> BatchAssembler[int]:
    workers = [True] if free is None else free
    return BatchAssembler(lambda key, items: delivered.append((key, items)), lambda: workers[0])


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


async def test_a_batch_goes_on_gathering_while_no_worker_is_free() -> None:
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


async def test_what_is_taken_is_not_delivered_later() -> None:
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
