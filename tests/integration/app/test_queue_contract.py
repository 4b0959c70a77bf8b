"""Handlers of RabbitMQ queues: the same result in memory and on a real broker."""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import pytest
from nacl.public import PrivateKey
from sqlalchemy import create_engine, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.integration.app.conftest import LEDGER, METADATA

from conquiet import App, Emit, JobContext, Reject, SyncEmit
from conquiet.app import AppSettings, TestApp
from conquiet.errors import ConfigurationError, DatabaseUnavailableError
from conquiet.rabbit import (
    MemoryKeyStore,
    Postpone,
    RabbitDeadLetters,
    SchemaRegistry,
    current_deliveries,
    current_delivery,
    seal,
)
from conquiet.testing import wait_until_async

QUEUE = "crm-sync"


@dataclass
class Order:
    order_id: str
    cents: int = 0


@dataclass
class QueuePlace:
    """The queues of a test: in memory, or in a broker."""

    db_url: str
    engine: Engine
    amqp_url: str | None
    redis_url: str
    name: str
    test_app: TestApp | None = field(default=None)

    def app(self) -> App:
        rabbit = self.amqp_url or "amqp://127.0.0.1:1/"
        settings = AppSettings(relay_poll_s=0.02)
        return App(self.name, redis=self.redis_url, database=self.db_url, rabbit=rabbit, settings=settings)

    @asynccontextmanager
    async def running(self, app: App) -> AsyncIterator[None]:
        if self.amqp_url is None:
            async with TestApp(app) as self.test_app:
                yield
            return
        await asyncio.to_thread(app.create_tables)
        await asyncio.to_thread(self._declare)
        async with app:
            yield

    async def publish(self, payload: Mapping[str, Any], message_id: str) -> None:
        if self.test_app is not None:
            await self.test_app.publish(QUEUE, payload, message_id=message_id)
        else:
            await asyncio.to_thread(self._publish, payload, message_id)

    async def until(self, condition: Callable[[], object]) -> None:
        """Return once it holds: in memory after a drain."""
        if self.test_app is not None:
            await self.test_app.drain()
            assert condition()
            return
        await wait_until_async(lambda: asyncio.to_thread(condition))

    async def dead(self, count: int = 1) -> list[tuple[str, str]]:
        """Return id and reason of the dead letters, once there are this many."""
        if self.test_app is not None:
            await self.test_app.drain()
            assert len(self.test_app.dead_letters) == count
            return [(one.id, one.error) for one in self.test_app.dead_letters]
        assert self.amqp_url is not None
        dead_letters = RabbitDeadLetters(self.amqp_url, f"{QUEUE}.dead")
        await self.until(lambda: self._depth(f"{QUEUE}.dead") == count)
        return [(one.message_id, one.reason) for one in await dead_letters.list()]

    def booked(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(LEDGER.c.order_id).order_by(LEDGER.c.id)).scalars())

    def _declare(self) -> None:
        with self._channel() as channel:
            channel.queue_declare(QUEUE, durable=True)

    def _publish(self, payload: Mapping[str, Any], message_id: str) -> None:
        with self._channel() as channel:
            channel.confirm_delivery()
            properties = pika.BasicProperties(message_id=message_id)
            channel.basic_publish("", QUEUE, json.dumps(payload).encode(), properties)

    def _depth(self, queue: str) -> int:
        with self._channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).method.message_count)
            except pika.exceptions.ChannelClosedByBroker:
                return -1

    def _channel(self) -> Any:
        assert self.amqp_url is not None
        return _Channel(self.amqp_url)


class _Channel:
    def __init__(self, url: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))

    def __enter__(self) -> Any:
        return self._connection.channel()

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def on_rabbit(database: str) -> Any:
    return pytest.param(f"rabbit and {database}", marks=pytest.mark.xdist_group("rabbitmq"))


@pytest.fixture(params=["memory", on_rabbit("sqlite"), on_rabbit("mariadb")])
def place(request: pytest.FixtureRequest, tmp_path: Path, key_prefix: str) -> Iterator[QueuePlace]:
    amqp_url = None if request.param == "memory" else request.getfixturevalue("amqp_url")
    redis_url = "redis://127.0.0.1:1/0" if amqp_url is None else request.getfixturevalue("redis_url")
    on_mariadb = request.param.endswith("mariadb")
    db_url = request.getfixturevalue("mariadb_url") if on_mariadb else f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(db_url)
    METADATA.create_all(engine)
    yield QueuePlace(db_url, engine, amqp_url, redis_url, f"{key_prefix}shop")
    engine.dispose()


async def test_a_message_of_a_queue_has_its_effect_once(place: QueuePlace) -> None:
    app = place.app()

    @app.queue(QUEUE)
    async def book(order: Order, session: AsyncSession) -> None:
        await session.execute(insert(LEDGER).values(order_id=order.order_id))

    async with place.running(app):
        for message_id, order_id in (("m1", "a"), ("m1", "a"), ("m2", "b")):
            await place.publish({"order_id": order_id}, message_id)
        await place.until(lambda: "b" in place.booked())

    assert place.booked() == ["a", "b"]


async def test_a_payload_of_a_queue_that_does_not_fit_dies_at_once(place: QueuePlace) -> None:
    app = place.app()
    seen: list[str] = []

    @app.queue(QUEUE)
    async def book(order: Order) -> None:
        seen.append(order.order_id)

    async with place.running(app):
        await place.publish({"order_id": "a", "cents": "secret"}, "m1")
        ((message_id, reason),) = await place.dead()

    assert (message_id, seen) == ("m1", [])
    assert "field $.cents: Expected `int`" in reason
    assert "secret" not in reason


async def test_a_rejected_message_of_a_queue_dies_at_once(place: QueuePlace) -> None:
    app = place.app()
    runs: list[str] = []

    @app.queue(QUEUE)
    async def book(order: Order) -> None:
        runs.append(order.order_id)
        raise Reject("closed")

    async with place.running(app):
        await place.publish({"order_id": "a"}, "m1")
        assert await place.dead() == [("m1", "closed")]

    assert runs == ["a"]


async def test_a_failing_handler_of_a_queue_runs_twice_and_its_message_dies(place: QueuePlace) -> None:
    app = place.app()
    redelivered: list[bool] = []

    @app.queue(QUEUE)
    async def book(order: Order, session: AsyncSession) -> None:
        redelivered.append(current_delivery().redelivered)
        await session.execute(insert(LEDGER).values(order_id=order.order_id))
        raise KeyError(order.order_id)

    async with place.running(app):
        await place.publish({"order_id": "secret"}, "m1")
        assert await place.dead() == [("m1", "refused")]

    assert redelivered == [False, True]
    assert place.booked() == []


async def save(_orders: object) -> None:
    raise AssertionError


async def one_async(order: Order) -> Any:
    return save(order)


def one_plain(order: Order) -> Any:
    return save(order)


async def many_async(orders: list[Order]) -> Any:
    return save(orders)


def many_plain(orders: list[Order]) -> Any:
    return save(orders)


@pytest.mark.parametrize("handler", [one_async, one_plain, many_async, many_plain])
async def test_a_queue_keeps_a_message_if_its_handler_was_not_awaited(
    place: QueuePlace, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = place.app()
    app.queue(QUEUE, batch=2 if "many" in handler.__name__ else None)(handler)

    async with place.running(app):
        await place.publish({"order_id": "a"}, "m1")
        assert await place.dead() == [("m1", "refused")]

    assert "so its work was not done" in caplog.text


async def test_a_plain_function_of_a_queue_emits_in_its_transaction(place: QueuePlace) -> None:
    app = place.app()
    receipts: list[str] = []

    @app.queue(QUEUE)
    def book(order: Order, session: Session, emit: SyncEmit) -> None:
        session.execute(insert(LEDGER).values(order_id=order.order_id))
        emit("mail.receipt", {"order_id": order.order_id})
        if order.order_id == "bad":
            raise ValueError

    @app.handler("mail.receipt")
    async def mail(receipt: dict[str, str]) -> None:
        receipts.append(receipt["order_id"])

    async with place.running(app):
        await place.publish({"order_id": "bad"}, "m1")
        await place.publish({"order_id": "good"}, "m2")
        await place.until(lambda: receipts)
        assert await place.dead() == [("m1", "refused")]

    assert place.booked() == ["good"]
    assert receipts == ["good"]


async def test_an_unreadable_body_of_a_queue_dies_with_its_reason(place: QueuePlace) -> None:
    app = place.app()

    @app.queue(QUEUE)
    async def book(order: Order, emit: Emit) -> None:
        raise Postpone

    async with place.running(app):
        if place.test_app is not None:
            await place.test_app.publish(QUEUE, b"no json", message_id="m1")
        else:
            with place._channel() as channel:
                channel.basic_publish("", QUEUE, b"no json", pika.BasicProperties(message_id="m1"))
        assert await place.dead() == [("m1", "body is not JSON")]


async def test_personal_data_of_a_queue_is_decrypted(place: QueuePlace) -> None:
    app = place.app()
    recipient, sender = PrivateKey.generate(), PrivateKey.generate()
    public, private = (urlsafe_b64encode(bytes(key)).decode().rstrip("=") for key in (recipient.public_key, recipient))
    contacts: list[object] = []

    @app.queue(QUEUE, schemas=SchemaRegistry(), key_store=MemoryKeyStore({public: private}))
    async def book(action: dict[str, Any]) -> None:
        contacts.append(action["contact"])

    async with place.running(app):
        sealed = seal({"email": "jane@example.org"}, recipient_public=public, sender_private=bytes(sender))
        await place.publish({"schema": "proca:action:2", "personalInfo": sealed}, "m1")
        await place.until(lambda: contacts)

    assert contacts == [{"email": "jane@example.org"}]


async def test_a_batch_has_each_effect_once_and_fails_only_the_guilty(place: QueuePlace) -> None:
    app = place.app()
    calls: list[list[str]] = []

    @app.queue(QUEUE, batch=6, within_s=1.0)
    async def book(orders: list[Order], session: AsyncSession) -> None:
        ids = [order.order_id for order in orders]
        assert [delivery.message_id for delivery in current_deliveries()] == [f"m-{each}" for each in ids]
        calls.append(ids)
        await session.execute(insert(LEDGER), [{"order_id": each} for each in ids])
        if "c" in ids:
            raise KeyError("secret")

    async with place.running(app):
        for order_id in "abca":
            await place.publish({"order_id": order_id}, f"m-{order_id}")
        await place.publish({"order_id": "wrong", "cents": "secret"}, "m-wrong")
        await place.publish({"order_id": "d"}, "m-d")
        dead = dict(await place.dead(2))
        await place.until(lambda: len(place.booked()) == 3)

    assert sorted(place.booked()) == ["a", "b", "d"]
    assert sorted(dead) == ["m-c", "m-wrong"]
    assert dead["m-c"] == "refused"
    assert "field $.cents: Expected `int`" in dead["m-wrong"]
    assert max(len(ids) for ids in calls) > 1
    if place.test_app is not None:  # a broker may deliver them in two parts
        assert calls[0] == ["a", "b", "c", "d"]  # without the duplicate and the payload that does not fit


async def test_a_batch_of_a_queue_without_a_session_gets_lists(place: QueuePlace) -> None:
    app = place.app()
    seen: list[str] = []

    @app.queue(QUEUE, batch=3, within_s=0.3)
    def book(orders: list[Order]) -> bool:
        ids = [order.order_id for order in orders]
        if "b" in ids:
            return False
        seen.extend(ids)
        if "c" in ids:
            raise Reject("closed")
        return True

    async with place.running(app):
        for order_id in "abcd":
            await place.publish({"order_id": order_id}, f"m-{order_id}")
        dead = await place.dead(2)
        await place.until(lambda: {"a", "d"} <= set(seen))

    assert sorted(dead) == [("m-b", "refused"), ("m-c", "closed")]


async def test_a_batch_of_a_queue_waits_again_if_a_server_is_away(tmp_path: Path) -> None:
    app = App("shop", rabbit="amqp://127.0.0.1:1/")
    calls: list[int] = []

    @app.queue(QUEUE, batch=10)
    async def book(orders: list[Order]) -> None:
        calls.append(len(orders))
        if len(calls) == 1:
            raise DatabaseUnavailableError("away")

    async with TestApp(app) as t:
        for number in range(3):
            await t.publish(QUEUE, {"order_id": str(number)}, message_id=str(number))
        with pytest.raises(DatabaseUnavailableError):
            await t.drain()
        await t.drain()

    assert calls == [3, 3]
    assert t.dead_letters == []


def test_a_batch_of_a_queue_for_single_payloads_or_contexts_is_refused() -> None:
    app = App("shop", redis="redis://127.0.0.1:1/0", rabbit="amqp://127.0.0.1:1/")
    with pytest.raises(ConfigurationError, match=r"list\[Order\]"):

        @app.queue(QUEUE, batch=10)
        async def book(order: Order) -> None: ...

    with pytest.raises(ConfigurationError, match="current_deliveries"):

        @app.queue(QUEUE, batch=10)
        async def sync(orders: list[Order], contexts: list[JobContext]) -> None: ...

    with pytest.raises(ConfigurationError, match="give batch="):
        app.queue(QUEUE, within_s=1.0)


async def test_a_queue_that_the_app_does_not_have_is_refused(tmp_path: Path) -> None:
    app = App("shop", rabbit="amqp://127.0.0.1:1/")

    @app.queue(QUEUE)
    async def book(order: Order) -> None: ...

    async with TestApp(app) as t:
        with pytest.raises(ValueError, match="the app has no queue 'crm'; its queues: crm-sync"):
            await t.publish("crm", {})
