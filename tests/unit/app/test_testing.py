"""``TestApp``: the behaviour that it shares with no real server."""

from dataclasses import dataclass

import pytest

from conquiet import App
from conquiet.app import TestApp
from conquiet.errors import DatabaseUnavailableError


@dataclass
class Paid:
    number: int


async def test_an_interrupted_batch_keeps_the_turn_of_its_key() -> None:
    """Another message of the key must not run before the ones that will be delivered again."""
    app = App("shop", redis="redis://127.0.0.1:1/0")
    handled: list[int] = []
    unavailable = [DatabaseUnavailableError("the database is gone")]

    @app.handler("order.paid", batch=2)
    async def book(orders: list[Paid]) -> None:
        if unavailable:
            raise unavailable.pop()
        handled.extend(order.number for order in orders)

    async with TestApp(app) as running:
        for number in (1, 2, 3):
            await running.emit("order.paid", Paid(number), key="customer-3")
        with pytest.raises(DatabaseUnavailableError):
            await running.drain()
        await running.drain()

    assert handled == [1, 2, 3]
