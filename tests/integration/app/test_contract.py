"""One application, the same result in memory and on real servers: the double cannot drift."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.integration.app.conftest import LEDGER, Place

from conquiet import DbSession, Emit, Every, JobContext, Reject, Retry, RetryPolicy, SyncEmit
from conquiet.app.database import with_driver
from conquiet.errors import PayloadError


@dataclass
class OrderPaid:
    order_id: str
    cents: int = 0


RETRY = RetryPolicy.fixed(0.02, max_attempts=3)


def row(order: OrderPaid) -> Any:
    return insert(LEDGER).values(order_id=order.order_id)


async def test_an_effect_happens_once_though_its_message_comes_twice(place: Place) -> None:
    app = place.app()

    @app.handler("order.paid")
    async def book(order: OrderPaid, session: AsyncSession) -> None:
        await session.execute(row(order))

    async with place.running(app) as running:
        for _ in range(2):
            await running.deliver("order.paid", {"order_id": "a", "cents": 5}, message_id="m1")
        await running.deliver("order.paid", {"order_id": "b", "cents": 5}, message_id="m2")
        await running.settle()

    assert sorted(place.booked()) == ["a", "b"]


async def test_without_the_inbox_a_message_that_comes_twice_has_its_effect_twice(place: Place) -> None:
    app = place.app()

    @app.handler("order.paid", once=False)
    async def book(order: OrderPaid, session: AsyncConnection) -> None:
        await session.execute(row(order))

    async with place.running(app) as running:
        for _ in range(2):
            await running.deliver("order.paid", {"order_id": "a"}, message_id="m1")
        await running.settle()

    assert place.booked() == ["a", "a"]


async def test_an_id_is_emitted_once(place: Place) -> None:
    app = place.app()
    seen: list[str] = []

    @app.handler("order.paid")
    async def book(order: OrderPaid) -> None:
        seen.append(order.order_id)

    async with place.running(app) as running:
        ids = [await app.emit("order.paid", OrderPaid("a"), id="order-a") for _ in range(2)]
        await running.settle()

    assert ids == ["order-a", "order-a"]
    assert seen == ["a"]


async def test_a_failed_attempt_leaves_nothing_and_the_next_one_commits(place: Place) -> None:
    app = place.app()
    attempts: list[int] = []

    @app.handler("order.paid", retry=RETRY)
    async def book(order: OrderPaid, session: AsyncSession, emit: Emit, ctx: JobContext) -> None:
        await session.execute(row(order))
        await emit("order.booked", {"attempt": ctx.attempt})
        if ctx.attempt < 3:
            raise TimeoutError

    @app.handler("order.booked")
    async def booked(payload: dict[str, int]) -> None:
        attempts.append(payload["attempt"])

    async with place.running(app) as running:
        await app.emit("order.paid", OrderPaid("a"))
        await running.settle()

    assert place.booked() == ["a"]
    assert attempts == [3]


async def test_the_last_failed_attempt_is_a_dead_letter_with_its_reason(place: Place) -> None:
    app = place.app()

    @app.handler("order.paid", retry=RETRY)
    async def book(order: OrderPaid) -> None:
        raise KeyError(order.order_id)

    async with place.running(app) as running:
        await app.emit("order.paid", OrderPaid("secret"), id="m1")
        await running.settle()
        (dead,) = await running.dead_letters()

    assert (dead.event, dead.id, dead.attempts, dead.reason) == ("order.paid", "m1", 3, "attempts_exhausted")
    assert dead.error_type == "KeyError"
    assert "secret" not in dead.error + dead.traceback


async def test_a_payload_that_does_not_fit_is_dead_lettered_with_its_field(place: Place) -> None:
    app = place.app()

    @app.handler("order.paid", retry=RETRY)
    async def book(order: OrderPaid, session: AsyncSession) -> None:
        await session.execute(row(order))

    async with place.running(app) as running:
        await running.deliver("order.paid", {"order_id": "a", "cents": "secret"}, message_id="m1")
        await running.settle()
        (dead,) = await running.dead_letters()

    assert (dead.attempts, dead.reason) == (1, "rejected")
    assert "does not fit OrderPaid: field $.cents: Expected `int`" in dead.error
    assert "secret" not in dead.error
    assert place.booked() == []


async def test_a_handler_decides_with_retry_and_reject(place: Place) -> None:
    app = place.app()
    attempts: list[int] = []

    @app.handler("order.paid", retry=RetryPolicy(max_attempts=2))
    async def book(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise Retry(0.01)
        raise Reject("closed")

    async with place.running(app) as running:
        await app.emit("order.paid")
        await running.settle()
        (dead,) = await running.dead_letters()

    assert attempts == [1, 2]
    assert (dead.reason, dead.error) == ("rejected", "closed")


@pytest.mark.parametrize("kind", ["Session", "DbSession", "Connection"])
async def test_a_plain_function_has_its_session_and_emits_in_its_transaction(place: Place, kind: str) -> None:
    app = place.app()
    receipts: list[str] = []

    def work(order: OrderPaid, session: Session | Connection, emit: SyncEmit) -> None:
        session.execute(row(order))
        finish(order, emit)

    def finish(order: OrderPaid, emit: SyncEmit) -> None:
        emit("mail.receipt", {"order_id": order.order_id})
        if order.order_id == "bad":
            raise ValueError

    def with_session(order: OrderPaid, session: Session, emit: SyncEmit) -> None:
        work(order, session, emit)

    def with_db_session(order: OrderPaid, session: DbSession, emit: SyncEmit) -> None:
        session.execute("INSERT INTO ledger (order_id) VALUES (:order_id)", {"order_id": order.order_id})
        finish(order, emit)

    def with_connection(order: OrderPaid, session: Connection, emit: SyncEmit) -> None:
        work(order, session, emit)

    functions: dict[str, Callable[..., None]] = {
        "Session": with_session,
        "DbSession": with_db_session,
        "Connection": with_connection,
    }
    app.handler("order.paid")(functions[kind])

    @app.handler("mail.receipt")
    def mail(receipt: dict[str, str]) -> None:
        receipts.append(receipt["order_id"])

    async with place.running(app) as running:
        await app.emit("order.paid", OrderPaid("bad"))
        await app.emit("order.paid", OrderPaid("good"))
        await running.settle()

    assert place.booked() == ["good"]
    assert receipts == ["good"]


async def test_a_message_emitted_in_a_request_is_sent_if_the_request_commits(place: Place) -> None:
    app = place.app()
    seen: list[str] = []

    @app.handler("order.paid")
    async def book(order: OrderPaid) -> None:
        seen.append(order.order_id)

    engine = create_async_engine(with_driver(place.engine.url, asynchronous=True))
    async with place.running(app) as running:
        sessions = async_sessionmaker(engine)
        async with sessions() as session:
            await app.emit("order.paid", OrderPaid("rolled back"), session=session)
        async with sessions() as session:
            await app.emit("order.paid", OrderPaid("async"), session=session)
            await session.commit()
        with sessionmaker(place.engine)() as sync_session:
            app.emit_sync("order.paid", OrderPaid("sync"), session=sync_session)
            sync_session.commit()
        await running.settle()
    await engine.dispose()

    assert sorted(seen) == ["async", "sync"]


async def test_a_delayed_message_does_not_come_before_its_time(place: Place) -> None:
    app = place.app()
    arrived: dict[str, float] = {}

    @app.handler("later")
    async def later(payload: dict[str, str]) -> None:
        arrived[payload["name"]] = app.assembly.clock.time()

    @app.handler("start")
    async def start(session: AsyncSession, emit: Emit) -> None:
        await emit("later", {"name": "outbox"}, delay_s=1.5)

    async with place.running(app) as running:
        began = app.assembly.clock.time()  # a TestApp's clock does not move meanwhile
        await app.emit("later", {"name": "at"}, at=datetime.fromtimestamp(began + 1, UTC))
        await app.emit("later", {"name": "delay"}, delay_s=0.5)
        await app.emit("start")
        await app.emit("later", {"name": "now"})
        await running.settle()

    due = {"now": began, "delay": began + 0.5, "at": began + 1, "outbox": began + 1.5}
    assert arrived.keys() == due.keys()
    early_s = {name: due[name] - at for name, at in arrived.items() if at < due[name] - 0.002}  # whole milliseconds
    assert early_s == {}
    if place.in_memory:  # its clock moves only when nothing is due
        assert list(arrived) == ["now", "delay", "at", "outbox"]


async def test_an_old_payload_is_upgraded(place: Place) -> None:
    app = place.app()
    seen: list[OrderPaid] = []

    @app.upgrade("order.paid", 1)
    def euros_to_cents(old: dict[str, Any]) -> dict[str, Any]:
        return {"order_id": old["order_id"], "cents": old["euros"] * 100}

    @app.handler("order.paid")
    async def book(order: OrderPaid) -> None:
        seen.append(order)

    async with place.running(app) as running:
        await running.deliver("order.paid", {"order_id": "old", "euros": 3}, message_id="m1")
        await app.emit("order.paid", OrderPaid("new", 5))
        await running.settle()

    assert seen == [OrderPaid("old", 300), OrderPaid("new", 5)]


async def test_a_schedule_runs_its_function_with_its_session(place: Place) -> None:
    app = place.app()
    fired = asyncio.Event()

    @app.schedule(Every(600.0 if place.in_memory else 1.0), name="tick")
    async def tick(session: AsyncSession, ctx: JobContext) -> None:
        await session.execute(insert(LEDGER).values(order_id=ctx.id))
        fired.set()

    async with place.running(app) as running:
        if place.in_memory:
            await running.settle()
        else:
            await asyncio.wait_for(fired.wait(), 15)

    booked = place.booked()
    assert booked
    assert len(set(booked)) == len(booked)
    assert all(one.startswith("tick@") for one in booked)


class Client:
    """A resource."""


@pytest.mark.parametrize("plain", [True, False])
async def test_a_resource_is_made_for_each_message_and_cleaned_up(place: Place, *, plain: bool) -> None:
    app = place.app()
    ended: list[Client] = []
    used: list[Client] = []

    async def client() -> AsyncIterator[Client]:
        made = Client()
        yield made
        ended.append(made)

    app.provide(Client, client)

    async def use(order: OrderPaid, client: Client) -> None:
        used.append(client)

    def use_in_thread(order: OrderPaid, client: Client) -> None:
        used.append(client)

    app.handler("order.paid")(use_in_thread if plain else use)

    async with place.running(app) as running:
        await app.emit("order.paid", OrderPaid("a"))
        await app.emit("order.paid", OrderPaid("b"))
        await running.settle()

    assert len({id(one) for one in used}) == 2
    assert ended == used


async def test_an_override_takes_the_place_of_a_resource(place: Place) -> None:
    app = place.app()
    used: list[Client] = []
    fake = Client()
    app.provide(Client, Client, scope="process")

    @app.handler("order.paid")
    async def use(client: Client) -> None:
        used.append(client)

    async with place.running(app) as running:
        with app.override(Client, fake):
            await app.emit("order.paid")
            await running.settle()

    assert used == [fake]


async def test_a_logger_names_the_message(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    app = place.app()

    @app.handler("order.paid")
    async def book(log: logging.Logger) -> None:
        log.warning("booked", extra={"amount": 3})

    async with place.running(app) as running:
        await app.emit("order.paid", id="m1")
        await running.settle()

    (record,) = [record for record in caplog.records if record.message == "booked"]
    assert {name: record.__dict__[name] for name in ("message_id", "event_name", "amount")} == {
        "message_id": "m1",
        "event_name": "order.paid",
        "amount": 3,
    }


async def test_an_event_of_another_service_is_emitted_and_not_handled_here(place: Place) -> None:
    app = place.app()
    app.declare("mail.receipt", OrderPaid)

    @app.handler("order.paid")
    async def book(order: OrderPaid, emit: Emit) -> None:
        await emit("mail.receipt", order)

    async with place.running(app) as running:
        await app.emit("order.paid", OrderPaid("a"))
        await running.settle()
        assert await running.dead_letters() == []


async def test_emitted_messages_are_checked_before_they_are_sent(place: Place) -> None:
    app = place.app()

    @app.handler("order.paid")
    async def book(order: OrderPaid) -> None:
        raise AssertionError

    async with place.running(app) as running:
        with pytest.raises(PayloadError, match=r"field \$\.cents"):
            await app.emit("order.paid", {"order_id": "a", "cents": "much"})
        await running.settle()
        assert await running.dead_letters() == []


async def test_messages_of_a_key_keep_their_order_through_retries(place: Place) -> None:
    """By way of the outbox and directly."""
    app = place.app()
    seen: list[str] = []

    @app.handler("order.paid")
    async def book(order: OrderPaid, session: AsyncSession, emit: Emit) -> None:
        for number in (1, 2, 3):
            await emit("order.shipped", OrderPaid(f"{order.order_id}{number}"), key=order.order_id)

    @app.handler("order.shipped", retry=RETRY)
    async def ship(order: OrderPaid, ctx: JobContext) -> None:
        seen.append(order.order_id)
        if order.order_id.endswith("1") and ctx.attempt == 1:
            raise ConnectionError

    async with place.running(app) as running:
        await app.emit("order.paid", OrderPaid("a"))
        for number in (1, 2, 3):
            await app.emit("order.shipped", OrderPaid(f"b{number}"), key="b")
        await running.settle()

    for key in ("a", "b"):
        assert [one for one in seen if one.startswith(key)] == [f"{key}{number}" for number in (1, 1, 2, 3)]
