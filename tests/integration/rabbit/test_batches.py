"""A batch syncer: one call for many messages, a verdict for each."""

from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.integration.rabbit.conftest import Rabbit

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, FatalSyncerError
from conquiet.rabbit import RabbitConsumer, RabbitSettings, SchemaRegistry, current_deliveries
from conquiet.testing import wait_until_async
from conquiet.transactional import create_tables, for_rabbit_batch


async def test_a_batch_is_acknowledged_and_the_failing_message_dead_lettered_alone(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *({"n": number} for number in range(20)))
    sizes: list[int] = []

    async def syncer(messages: list[dict[str, Any]]) -> bool:
        assert [delivery.queue for delivery in current_deliveries()] == [queue] * len(messages)
        sizes.append(len(messages))
        return all(message["n"] != 13 for message in messages)

    async with RabbitConsumer(rabbit.url, queue, syncer, batch=20, within_s=2.0, dead_letter=True) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 19, message="19 are acknowledged")
        await wait_until_async(lambda: consumer.count.dead_lettered == 1, message="one is dead")

    assert max(sizes) > 10
    assert [body for _, body in rabbit.take("dead")] == [b'{"n": 13}']


async def test_preparing_a_batch_leaves_no_context_variable_for_the_next(rabbit: Rabbit) -> None:
    """A schema or a key store may bind a logger or a tenant; single messages are isolated from each other too."""
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    prepared: list[str] = []
    handled: list[str] = []

    def check(message: dict[str, Any]) -> dict[str, Any]:
        prepared.append(tenant.get())
        tenant.set(message["tenant"])
        return message

    async def syncer(messages: list[dict[str, Any]]) -> bool:
        handled.append(tenant.get())
        return True

    queue = rabbit.queue()
    schemas = SchemaRegistry(built_in=False).register_default(check)
    async with RabbitConsumer(rabbit.url, queue, syncer, batch=10, within_s=0.01, schemas=schemas) as consumer:
        rabbit.put(queue, {"tenant": "acme"})
        await wait_until_async(lambda: consumer.count.ack == 1)
        rabbit.put(queue, {"tenant": "globex"})
        await wait_until_async(lambda: consumer.count.ack == 2)

    assert prepared == ["none", "none"]
    assert handled == ["acme", "globex"]


def test_the_prefetch_follows_the_batch() -> None:
    assert RabbitSettings(concurrency=2, batch=200).window == 800
    with pytest.raises(ConfigurationError, match="never send a whole batch"):
        RabbitSettings(batch=200, prefetch=100)


async def test_effects_of_a_batch_happen_once_though_it_is_delivered_twice(rabbit: Rabbit, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'db.sqlite'}")
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INT)"))
    queue = rabbit.queue()
    rabbit.put(queue, *({"n": number} for number in (*range(10), *range(10))))

    def handle(messages: list[dict[str, Any]], session: DbSession) -> bool | None:
        session.execute("INSERT INTO effects (n) VALUES (:n)", [{"n": message["n"]} for message in messages])
        return False if any(message["n"] == 4 for message in messages) else None

    syncer = for_rabbit_batch(handle, engine=engine, key=lambda message: str(message["n"]))
    async with RabbitConsumer(rabbit.url, queue, syncer, batch=10, within_s=1.0, dead_letter=True) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 18, message="18 are acknowledged")
        await wait_until_async(lambda: consumer.count.dead_lettered == 2, message="two are dead")

    with engine.connect() as connection:
        booked = sorted(connection.execute(text("SELECT n FROM effects")).scalars())
    engine.dispose()
    assert booked == [n for n in range(10) if n != 4]


async def test_an_error_of_a_batch_syncer_stops_the_consumer_at_one_message(rabbit: Rabbit) -> None:
    queue = rabbit.queue()
    rabbit.put(queue, *({"n": number} for number in range(8)))

    def syncer(messages: list[dict[str, Any]]) -> bool:
        if any(message["n"] == 5 for message in messages):
            raise ZeroDivisionError
        return True

    consumer = RabbitConsumer(rabbit.url, queue, syncer, batch=8, within_s=2.0, dead_letter=True)
    with pytest.raises(FatalSyncerError, match="ZeroDivisionError"):
        await consumer.run()

    assert [body for _, body in rabbit.take(queue)] == [b'{"n": 5}']
