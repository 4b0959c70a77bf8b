import asyncio
from typing import Any

import pytest

from conquiet.errors import RabbitConnectionError
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.properties import encode_properties
from conquiet.rabbit.slow_start import SlowStart, is_suspect
from conquiet.testing import wait_until_async


def delivery(tag: int, *, redelivered: bool = False, count: int | None = None) -> Delivery:
    session: Any = None
    headers = None if count is None else {"x-delivery-count": count}
    return Delivery(session, tag, redelivered, encode_properties({"headers": headers}), b"{}")


@pytest.mark.parametrize(
    ("redelivered", "count", "suspect"),
    [(True, 2, True), (True, 7, True), (True, 1, False), (True, None, False), (False, 9, False)],
)
def test_a_suspect_came_back_twice_by_the_count_of_its_queue(redelivered: bool, count: Any, suspect: bool) -> None:  # noqa: FBT001
    assert is_suspect(delivery(1, redelivered=redelivered, count=count)) is suspect


class Link:
    def __init__(self) -> None:
        self.submitted: list[list[int]] = []
        self.cancelled = asyncio.Event()
        self.widened = 0
        self.given_up: list[BaseException] = []
        link: Any = self
        self.slow_start = SlowStart(
            link,
            self.submit,
            queue="work",
            tag="tag",
            window=8,
            depth=1,
            shuffle=lambda them: them.reverse(),
        )

    def submit(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            self.submitted.append([one.tag for one in deliveries])

    async def cancel(self) -> None:
        await self.cancelled.wait()

    def mark_lost(self, error: BaseException) -> None:
        self.given_up.append(error)

    async def widen(self, _queue: str, *, tag: str, prefetch: int) -> None:
        assert (tag, prefetch) == ("tag", 8)
        self.widened += 1


async def test_suspects_run_without_a_wider_window() -> None:
    link = Link()
    for tag in (1, 2):
        link.slow_start.received([delivery(tag, redelivered=True, count=3)])
    await asyncio.sleep(0)
    assert (link.submitted, link.widened) == ([[1], [2]], 0)

    link.cancelled.set()
    link.slow_start.received([delivery(3)])
    await wait_until_async(lambda: link.widened)
    assert (link.submitted, link.widened) == ([[1], [2], [3]], 1)


async def test_a_first_message_starts_when_the_narrow_consumer_is_cancelled() -> None:
    """Settled before that, it would free a place in the window of a consumer that is being cancelled."""
    link = Link()
    link.slow_start.received([delivery(1)])
    await asyncio.sleep(0)
    assert (link.submitted, link.widened) == ([], 0)

    link.cancelled.set()
    await wait_until_async(lambda: link.widened)
    assert link.submitted == [[1]]


async def test_redelivered_messages_run_after_new_ones_first_one_then_two_then_four() -> None:
    link = Link()
    link.cancelled.set()
    again = [delivery(tag, redelivered=True) for tag in range(1, 9)]
    link.slow_start.received(again[:1])
    link.slow_start.received([*again[1:], delivery(9)])
    await wait_until_async(lambda: len(link.submitted) >= 2)
    assert link.submitted == [[9], [8]]

    link.slow_start.finished(again[7])
    assert link.submitted[2:] == [[7, 6]]
    link.slow_start.finished(again[6])
    assert len(link.submitted) == 3
    link.slow_start.finished(again[5])
    assert link.submitted[3:] == [[5, 4, 3, 2]]


async def test_the_end_keeps_nothing_back() -> None:
    link = Link()
    link.slow_start.received([delivery(1, redelivered=True)])
    link.slow_start.received([delivery(2, redelivered=True), delivery(3, redelivered=True)])

    await link.slow_start.end()

    assert sorted(tag for batch in link.submitted for tag in batch) == [1, 2, 3]


async def test_a_cancellation_that_is_not_answered_gives_the_link_up() -> None:
    """Nothing is kept back: the deliveries see by their session that the link is gone."""
    link = Link()
    unanswered = RabbitConnectionError("no answer", reason="timeout")

    async def cancel() -> None:
        raise unanswered

    link.cancel = cancel  # type: ignore[method-assign]
    link.slow_start.received([delivery(1)])
    await wait_until_async(lambda: link.given_up)

    assert link.given_up == [unanswered]
    assert (link.submitted, link.widened) == ([[1]], 0)
