"""Batch handlers and groups of an application: the same result in memory and on real servers."""

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Connection, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.integration.app.conftest import LEDGER, Place

from conquiet import App, DbSession, Emit, JobContext, Reject, RetryPolicy
from conquiet.app import AppSettings
from conquiet.errors import ConfigurationError


@dataclass
class OrderPaid:
    order_id: str
    cents: int = 0


def row(order: OrderPaid) -> Any:
    return insert(LEDGER).values(order_id=order.order_id)


async def test_a_batch_has_each_effect_once_and_costs_only_the_guilty(place: Place) -> None:
    app = place.app()
    sizes: list[int] = []

    @app.handler("order.paid", batch=10, within_s=0.3)
    async def book(orders: list[OrderPaid], contexts: list[JobContext], session: AsyncSession, emit: Emit) -> None:
        assert [ctx.data["order_id"] for ctx in contexts] == [order.order_id for order in orders]
        sizes.append(len(orders))
        await session.execute(insert(LEDGER), [{"order_id": order.order_id} for order in orders])
        await emit("order.booked", {"count": len(orders)})
        if any(order.order_id == "c" for order in orders):
            raise ZeroDivisionError

    booked: list[int] = []

    @app.handler("order.booked")
    async def note(event: dict[str, Any]) -> None:
        booked.append(event["count"])

    async with place.running(app) as running:
        for order_id in "abcdefa":
            await running.deliver("order.paid", {"order_id": order_id}, message_id=order_id)
        await running.deliver("order.paid", {"cents": "no id"}, message_id="wrong")
        await running.settle()
        dead = await running.dead_letters()

    assert sorted(place.booked()) == ["a", "b", "d", "e", "f"]
    assert sorted((letter.id, letter.reason) for letter in dead) == [("c", "attempts_exhausted"), ("wrong", "rejected")]
    assert sum(booked) == 5  # the rolled-back call emitted nothing
    assert max(sizes) > 1


async def test_a_group_rolls_a_failing_handler_back_to_its_savepoint_only(place: Place) -> None:
    app = place.app()
    attempts: list[tuple[str, int]] = []

    @app.handler("order.paid", share_transaction=10, within_s=0.3, retry=RetryPolicy.fixed(0.02, max_attempts=2))
    def book(order: OrderPaid, session: Session, ctx: JobContext) -> None:
        session.execute(row(order))
        attempts.append((order.order_id, ctx.attempt))
        if order.order_id == "c":
            raise ZeroDivisionError

    async with place.running(app) as running:
        for order_id in "abcdea":
            await running.deliver("order.paid", {"order_id": order_id}, message_id=order_id)
        await running.settle()
        dead = await running.dead_letters()

    assert sorted(place.booked()) == ["a", "b", "d", "e"]
    assert [(letter.id, letter.error_type, letter.attempts) for letter in dead] == [("c", "ZeroDivisionError", 2)]
    assert sorted(attempts) == [("a", 1), ("b", 1), ("c", 1), ("c", 2), ("d", 1), ("e", 1)]


@pytest.mark.parametrize("kind", [DbSession, Connection])
async def test_a_batch_may_ask_for_any_session(place: Place, kind: type) -> None:
    app = place.app()

    def book(orders: list[OrderPaid], session: Any) -> None:
        connection = session.connection if isinstance(session, DbSession) else session
        connection.execute(insert(LEDGER), [{"order_id": order.order_id} for order in orders])

    book.__annotations__["session"] = kind
    app.handler("order.paid", batch=3, within_s=0.3)(book)
    async with place.running(app) as running:
        for order_id in "abc":
            await running.deliver("order.paid", {"order_id": order_id}, message_id=order_id)
        await running.settle()

    assert sorted(place.booked()) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [DbSession, Connection, Session])
async def test_a_group_may_ask_for_any_session(place: Place, kind: type) -> None:
    app = place.app()

    def book(order: OrderPaid, session: Any) -> None:
        connection = session.connection if isinstance(session, DbSession) else session
        connection.execute(row(order))
        if order.order_id == "c":  # the last fails: the others are committed
            raise ZeroDivisionError

    book.__annotations__["session"] = kind
    app.handler("order.paid", share_transaction=3, within_s=0.3)(book)
    async with place.running(app) as running:
        for order_id in "abc":
            await running.deliver("order.paid", {"order_id": order_id}, message_id=order_id)
        await running.settle()

    assert sorted(place.booked()) == ["a", "b"]


async def test_many_messages_emitted_in_a_batch_arrive_if_it_commits(place: Place) -> None:
    app = place.app()
    shipped: list[str] = []

    @app.handler("order.paid", batch=5, within_s=0.3)
    async def book(orders: list[OrderPaid], session: AsyncSession, emit: Emit) -> None:
        await session.execute(insert(LEDGER), [{"order_id": order.order_id} for order in orders])
        ids = await emit.many("order.booked", [{"order_id": order.order_id} for order in orders])
        assert len(set(ids)) == len(orders)
        if any(order.order_id == "b" for order in orders):
            raise ZeroDivisionError

    @app.handler("order.booked")
    async def ship(event: dict[str, Any]) -> None:
        shipped.append(event["order_id"])

    async with place.running(app) as running:
        for order_id in "abcde":
            await running.deliver("order.paid", {"order_id": order_id}, message_id=order_id)
        await running.settle()

    assert sorted(shipped) == ["a", "c", "d", "e"]


async def test_a_batch_without_a_session_gets_lists(place: Place) -> None:
    app = place.app()
    seen: list[str] = []

    @app.handler("order.paid", batch=3, within_s=0.3)
    async def book(orders: list[OrderPaid]) -> None:
        seen.extend(order.order_id for order in orders)

    async with place.running(app) as running:
        for order_id in "abcd":
            await running.deliver("order.paid", {"order_id": order_id}, message_id=order_id)
        await running.settle()

    assert sorted(seen) == ["a", "b", "c", "d"]


@pytest.fixture
def app() -> App:
    return App("shop", redis="redis://127.0.0.1:1/0", database="sqlite://", settings=AppSettings())


def test_a_batch_handler_for_single_payloads_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match=r"list\[OrderPaid\]"):

        @app.handler("order.paid", batch=10)
        async def book(order: OrderPaid) -> None: ...


def test_a_handler_of_lists_without_a_batch_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="batch="):

        @app.handler("order.paid")
        async def book(orders: list[OrderPaid]) -> None: ...


def test_a_shared_transaction_without_a_session_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="no session"):

        @app.handler("order.paid", share_transaction=10)
        async def book(order: OrderPaid) -> None: ...


def test_a_batch_with_a_shared_transaction_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="Leave one of them out"):
        app.handler("order.paid", share_transaction=10, batch=10)


async def test_a_shared_transaction_without_the_inbox_keeps_its_error(place: Place) -> None:
    app = place.app()
    runs: list[str] = []

    @app.handler("order.paid", once=False, share_transaction=10, within_s=0.3)
    def book(order: OrderPaid, session: Session) -> None:
        runs.append(order.order_id)
        session.execute(row(order))
        if order.order_id == "b":
            raise Reject("no such order")

    async with place.running(app) as running:
        for order_id in "abc":
            await running.deliver("order.paid", {"order_id": order_id}, message_id=order_id)
        await running.settle()
        (dead,) = await running.dead_letters()

    assert sorted(place.booked()) == ["a", "c"]
    assert sorted(runs) == ["a", "b", "c"]
    assert (dead.id, dead.reason, dead.error) == ("b", "rejected", "no such order")


async def test_a_batch_without_the_inbox_costs_only_the_guilty(place: Place) -> None:
    app = place.app()

    @app.handler("order.paid", once=False, batch=10, within_s=0.3)
    async def book(orders: list[OrderPaid], session: AsyncSession) -> None:
        await session.execute(insert(LEDGER), [{"order_id": order.order_id} for order in orders])
        if any(order.order_id == "b" for order in orders):
            raise Reject("no such order")

    async with place.running(app) as running:
        for order_id in "abc":
            await running.deliver("order.paid", {"order_id": order_id}, message_id=order_id)
        await running.settle()
        (dead,) = await running.dead_letters()

    assert sorted(place.booked()) == ["a", "c"]
    assert (dead.id, dead.reason) == ("b", "rejected")
