"""An application as a worker: its parts, its failures, its queues, its web application."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from conquiet import App, AppSettings
from conquiet.errors import ConquietError, QueueMissingError
from conquiet.rabbit import Outgoing, Publisher, RabbitDeadLetters
from conquiet.testing import RedisServer, wait_until_async

METADATA = MetaData()
ACTIONS = Table("actions", METADATA, Column("id", String(40), nullable=False))


@dataclass
class Action:
    id: str
    kind: str = "sign"


@pytest.fixture
def db_file(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    METADATA.create_all(engine)
    engine.dispose()
    return url


def actions(url: str) -> list[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = list(connection.execute(select(ACTIONS.c.id)).scalars())
    engine.dispose()
    return found


async def test_a_part_runs_alone(redis_url: str, db_file: str, key_prefix: str) -> None:
    """The relay publishes, and no handler runs."""
    app = App(f"{key_prefix}shop", redis=redis_url, database=db_file, settings=AppSettings(relay_poll_s=0.02))
    app.create_tables()

    @app.handler("action")
    async def handle(action: Action) -> None:
        raise AssertionError

    engine = create_engine(db_file)
    with Session(engine) as session:
        app.emit_sync("action", Action("a"), session=session)
        session.commit()
    app.set_only(["relay"])
    client = redis.Redis.from_url(redis_url)
    async with app:
        await wait_until_async(lambda: client.xlen(app.assembly.stream) == 1)
        assert client.xinfo_groups(app.assembly.stream) == []
    client.close()
    engine.dispose()


async def test_stop_lets_a_running_handler_finish(redis_url: str, key_prefix: str) -> None:
    app = App(f"{key_prefix}shop", redis=redis_url)
    started, finished = asyncio.Event(), asyncio.Event()

    @app.handler("action")
    async def handle(action: Action) -> None:
        started.set()
        await asyncio.sleep(0.05)
        finished.set()

    running = asyncio.create_task(app.run())
    await app.emit("action", Action("a"))
    await asyncio.wait_for(started.wait(), 10)
    app.stop()
    await asyncio.wait_for(running, 10)

    assert finished.is_set()
    assert (app.health().reason, app.abandoned) == ("stopped", 0)


async def test_the_first_failure_stops_the_other_parts_and_is_raised(
    private_redis: Callable[..., RedisServer], amqp_url: str
) -> None:
    """The queue does not exist: its consumer fails, and the processor ends with it."""
    server = private_redis()
    app = App("shop", redis=server.url, rabbit=amqp_url)

    @app.handler("action")
    async def handle(action: Action) -> None:
        raise AssertionError

    @app.queue("missing")
    async def sync(action: Action) -> None:
        raise AssertionError

    with pytest.raises(ConquietError, match="missing"):
        await asyncio.wait_for(app.run(), 30)
    assert not app.health().ready


async def test_a_queue_has_typed_handlers_with_an_effect_once(amqp_url: str, db_file: str) -> None:
    app = App("shop", rabbit=amqp_url, database=db_file)
    app.create_tables()

    @app.queue("actions", without_dead_letters="move")
    async def sync(action: Action, session: AsyncSession) -> None:
        await session.execute(insert(ACTIONS).values(id=action.id))
        if action.kind == "broken":
            raise ValueError

    await _declare(amqp_url, "actions")
    async with Publisher(amqp_url) as publisher, app:
        for message_id, body in (
            ("1", {"id": "a"}),
            ("1", {"id": "a"}),
            ("2", {"id": "b", "kind": "broken"}),
            ("3", {"id": 5}),
            ("4", {"id": "c"}),
        ):
            await publisher.send(Outgoing("actions", body, message_id=message_id))
        await wait_until_async(lambda: sorted(actions(db_file)) == ["a", "c"])
        dead = RabbitDeadLetters(amqp_url, "actions.dead")
        await wait_until_async(lambda: _has(dead, 2))

    assert sorted(actions(db_file)) == ["a", "c"]


async def _has(dead: RabbitDeadLetters, number: int) -> bool:
    try:
        return len(await dead.list()) == number
    except QueueMissingError:  # nothing was moved there yet
        return False


async def _declare(amqp_url: str, queue: str) -> None:
    import pika

    def declare() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
        connection.channel().queue_declare(queue, durable=True)
        connection.close()

    await asyncio.to_thread(declare)


async def test_a_route_emits_in_the_transaction_of_its_request(redis_url: str, db_file: str, key_prefix: str) -> None:
    import httpx
    from fastapi import FastAPI

    app = App(f"{key_prefix}shop", redis=redis_url, database=db_file)
    app.create_tables()
    app.declare("action", Action)
    engine = create_async_engine(db_file.replace("sqlite:", "sqlite+aiosqlite:"))
    sessions = async_sessionmaker(engine)
    api = FastAPI(lifespan=app.lifespan)

    @api.post("/actions/{name}")
    async def create(name: str) -> dict[str, str]:
        async with sessions() as session, session.begin():
            await session.execute(insert(ACTIONS).values(id=name))
            return {"id": await app.emit("action", Action(name), session=session)}

    async with (
        app.lifespan(api),
        httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop") as client,
    ):
        assert (await client.post("/actions/a")).status_code == 200
        await app.emit("action", Action("direct"))
    await engine.dispose()

    assert actions(db_file) == ["a"]
    check = create_engine(db_file)
    with check.connect() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM conquiet_outbox").scalar_one() == 1
    check.dispose()
    direct = redis.Redis.from_url(redis_url)
    assert direct.xlen(app.assembly.stream) == 1
    direct.close()
