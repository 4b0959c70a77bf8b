"""Orders are cut into calls of a bounded size, and every one of them is sent."""

from typing import Any, cast

import pytest

from conquiet.scheduler import schedule_store
from conquiet.scheduler.schedule_store import FireRequest


def orders(*sizes_bytes: int) -> list[FireRequest]:
    unused = cast("Any", None)
    return [FireRequest(unused, unused, [b"x" * size]) for size in sizes_bytes]


def sizes(chunk: list[FireRequest]) -> list[int]:
    return [len(message) for order in chunk for message in order.messages]


def test_no_order_is_left_out_where_the_bytes_of_a_call_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_store, "_BYTES_PER_CALL", 10)

    chunks = [sizes(chunk) for chunk in schedule_store._chunks(orders(4, 6, 1, 25, 9, 2))]

    assert chunks == [[4, 6], [1], [25], [9], [2]]


def test_no_order_is_left_out_where_the_number_of_plans_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_store, "_PLANS_PER_CALL", 2)

    chunks = [sizes(chunk) for chunk in schedule_store._chunks(orders(1, 2, 3, 4, 5))]

    assert chunks == [[1, 2], [3, 4], [5]]
