"""``emit_and_wait`` of an application: the same results in memory and on real servers."""

import asyncio
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import msgspec
import pydantic
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.integration.app.conftest import LEDGER, Place

from conquiet import RetryPolicy
from conquiet.errors import ConfigurationError, JobFailedError, JobResultError, JobTimeoutError, PayloadError


@dataclass
class Item:
    name: str
    fails: int = 0


class Price(msgspec.Struct):
    name: str
    amount: Decimal
    valid_until: date


class Offer(pydantic.BaseModel):
    prices: list[str]


pytestmark = pytest.mark.parametrize("place", ["memory and sqlite", "redis and sqlite"], indirect=True)

RETRY = RetryPolicy.fixed(0.02, max_attempts=3)


async def test_a_result_is_an_object_of_the_type_that_the_handler_declares(place: Place) -> None:
    app = place.app()
    attempts: list[str] = []

    @app.handler("price", retry=RETRY)
    async def price(item: Item, session: AsyncSession) -> Price:
        attempts.append(item.name)
        if len(attempts) <= item.fails:
            raise LookupError
        await session.execute(insert(LEDGER).values(order_id=item.name))
        return Price(item.name, Decimal("12.50"), date(2026, 1, 31))

    @app.handler("offer")
    def offer(item: Item, session: Session) -> Offer:
        session.execute(insert(LEDGER).values(order_id=item.name))
        return Offer(prices=[item.name])

    @app.handler("plain")
    async def plain(item: Item) -> list[Price]:
        return [Price(item.name, Decimal(1), date(2026, 1, 31))]

    async with place.running(app):
        found = await app.emit_and_wait("price", Item("lamp", fails=2), timeout_s=60)
        offered = await app.emit_and_wait("offer", {"name": "lamp"}, timeout_s=60)
        several = await app.emit_and_wait("plain", Item("lamp"), timeout_s=60)
        as_json = await app.emit_and_wait("plain", Item("lamp"), returns=list, timeout_s=60)
        again = await app.emit_and_wait("offer", Item("table"), id="once", timeout_s=60)
        known = await app.emit_and_wait("offer", Item("chair"), id="once", timeout_s=60)

    assert found == Price("lamp", Decimal("12.50"), date(2026, 1, 31))
    assert place.booked() == ["lamp", "lamp", "table"]
    assert offered == Offer(prices=["lamp"])
    assert several == [Price("lamp", Decimal(1), date(2026, 1, 31))]
    assert as_json == [{"name": "lamp", "amount": "1", "valid_until": "2026-01-31"}]
    assert again == known == Offer(prices=["table"])


async def test_a_plain_function_waits_in_its_own_thread(place: Place) -> None:
    app = place.app()
    app.set_concurrency(4)  # a handler that waits keeps its slot

    @app.handler("double")
    def double(item: Item) -> int:
        return 2 * item.fails

    @app.handler("ask")
    def ask(item: Item) -> int:  # it waits for another plain function
        return app.emit_and_wait_sync("double", item, returns=int, timeout_s=60)

    async with place.running(app):
        found = await app.emit_and_wait("ask", Item("lamp", fails=21), timeout_s=60)
        from_a_thread = await asyncio.to_thread(app.emit_and_wait_sync, "ask", Item("lamp", fails=1), timeout_s=60)

    assert (found, from_a_thread) == (42, 2)


async def test_a_dead_job_and_one_that_takes_too_long_have_their_errors(place: Place) -> None:
    app = place.app()

    @app.handler("dies")
    async def dies(item: Item) -> None:
        raise LookupError(item.name)

    app.declare("elsewhere", Item, stream=f"{place.name}-elsewhere")

    async with place.running(app):
        with pytest.raises(JobFailedError, match="is dead: LookupError") as dead:
            await app.emit_and_wait("dies", Item("secret"), timeout_s=60)
        with pytest.raises(JobTimeoutError, match=r"has not ended within 0.2 s"):
            await app.emit_and_wait("elsewhere", Item("lamp"), timeout_s=0.2)

    assert "secret" not in str(dead.value)


async def test_a_result_of_another_shape_names_the_field_and_not_its_value(place: Place) -> None:
    app = place.app()

    @app.handler("price")
    async def price(item: Item) -> dict[str, str]:
        return {"name": item.name, "amount": "secret", "valid_until": "2026-01-31"}

    async with place.running(app):
        with pytest.raises(JobResultError, match=r"does not fit Price: field \$\.amount") as refused:
            await app.emit_and_wait("price", Item("lamp"), returns=Price, timeout_s=60)
        with pytest.raises(JobResultError, match=r"does not fit Offer: field \$\.prices: missing"):
            await app.emit_and_wait("price", Item("lamp"), returns=Offer, timeout_s=60)
        with pytest.raises(ConfigurationError, match="cannot be a object"):
            await app.emit_and_wait("price", Item("lamp"), returns=type("object", (), {}))
        with pytest.raises(PayloadError):
            await app.emit_and_wait("price", {"nothing": 1})
        with pytest.raises(ConfigurationError, match="timeout_s"):
            await app.emit_and_wait("price", Item("lamp"), timeout_s=-1)

    assert "secret" not in str(refused.value)
