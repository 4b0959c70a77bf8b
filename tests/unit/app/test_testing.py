"""``TestApp``: the behaviour that it shares with no real server."""

import subprocess
import sys
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


async def test_time_of_a_test_app_passes_only_by_advance() -> None:
    app = App("shop", redis="redis://127.0.0.1:1/0")
    seen: list[str] = []

    @app.handler("reminder")
    async def remind(payload: dict[str, str]) -> None:
        seen.append(payload["text"])

    async with TestApp(app) as t:
        await t.emit("reminder", {"text": "later"}, delay_s=3_600)
        assert await t.drain() == 0
        t.clock.advance(3_600)
        assert await t.drain() == 1

    assert seen == ["later"]
    assert [(one.event, one.data) for one in t.emitted] == [("reminder", {"text": "later"})]


def test_a_test_app_without_schedules_needs_no_scheduler_extra() -> None:
    """Found by scripts/five_minutes.py, in an environment that has only the extras that a project names."""
    program = """
import asyncio, sys
sys.modules["cronsim"] = None
import importlib.util
real = importlib.util.find_spec
from conquiet.core import extras
extras.find_spec = lambda name, *rest: None if name == "cronsim" else real(name, *rest)
from conquiet import App
from conquiet.testing import TestApp
app = App("shop", redis="redis://127.0.0.1:1/0")
@app.handler("order.paid")
async def book() -> None: ...
async def main():
    async with TestApp(app) as t:
        await t.emit("order.paid")
        print(await t.drain())
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
