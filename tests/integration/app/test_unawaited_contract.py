"""A handler that returns a coroutine has not done its work: its message fails, in memory and on real servers."""

from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.app.conftest import Place


@dataclass
class OrderPaid:
    order_id: str


async def save(_orders: object) -> None:
    raise AssertionError


async def one_async(order: OrderPaid) -> Any:
    return save(order)


def one_plain(order: OrderPaid) -> Any:
    return save(order)


async def many_async(orders: list[OrderPaid]) -> Any:
    return save(orders)


def many_plain(orders: list[OrderPaid]) -> Any:
    return save(orders)


@pytest.mark.parametrize("handler", [one_async, one_plain, many_async, many_plain])
async def test_a_handler_that_was_not_awaited_fails_its_message(place: Place, handler: Any) -> None:
    app = place.app()
    app.handler("order.paid", batch=2 if "many" in handler.__name__ else None)(handler)

    async with place.running(app) as running:
        await app.emit("order.paid", OrderPaid("a"), id="m1")
        await running.settle()
        (dead,) = await running.dead_letters()

    assert (dead.id, dead.error_type) == ("m1", "conquiet.errors.ConfigurationError")
    assert "so its work was not done" in dead.error
