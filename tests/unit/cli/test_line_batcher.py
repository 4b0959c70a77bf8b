"""Batches of a slow source: sent soon, in order, and before its error."""

import asyncio
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import pytest

from conquiet.cli.line_batcher import LineBatcher

Batches = list[list[dict[str, Any]]]


def in_a_loop(feed: LineBatcher, take: Callable[[list[dict[str, Any]]], None]) -> None:
    async def run() -> None:
        async for batch in feed.batches_async():
            take(batch)

    asyncio.run(run())


def without_one(feed: LineBatcher, take: Callable[[list[dict[str, Any]]], None]) -> None:
    for batch in feed.batches():
        take(batch)


both = pytest.mark.parametrize("drive", [in_a_loop, without_one])


@both
def test_batches_are_full_and_in_order(drive: Callable[..., None]) -> None:
    taken: Batches = []

    drive(LineBatcher(({"n": number} for number in range(5_001)), size=500), taken.append)

    assert [one["n"] for batch in taken for one in batch] == list(range(5_001))
    assert max(len(batch) for batch in taken) == 500


@both
def test_a_batch_does_not_wait_for_what_comes_much_later(drive: Callable[..., None]) -> None:
    lines: Queue[int | None] = Queue()
    taken: Batches = []

    def source() -> Iterator[dict[str, Any]]:
        while (number := lines.get()) is not None:
            yield {"n": number}

    def take(batch: list[dict[str, Any]]) -> None:
        taken.append(batch)
        lines.put(2 if len(taken) == 1 else None)  # the producer continues when the first line has arrived

    lines.put(1)
    drive(LineBatcher(source(), size=500), take)

    assert taken == [[{"n": 1}], [{"n": 2}]]


@both
def test_lines_before_an_error_are_sent_before_it_is_raised(drive: Callable[..., None]) -> None:
    taken: Batches = []

    def source() -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        raise LookupError("line 2")

    with pytest.raises(LookupError, match="line 2"):
        drive(LineBatcher(source(), size=500), taken.append)

    assert taken == [[{"n": 1}]]


@both
def test_a_source_without_anything_gives_nothing(drive: Callable[..., None]) -> None:
    taken: Batches = []

    drive(LineBatcher(iter(()), size=500), taken.append)

    assert taken == []
