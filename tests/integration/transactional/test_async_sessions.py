"""Async handlers and ORM sessions on a real database, with both asynchronous drivers."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from conquiet.db.session import DbSession
from conquiet.errors import CommitUnknownError, ConflictError, DatabaseUnavailableError, MessageInProgressError
from conquiet.processor import JobContext, Processor
from conquiet.queue.models import QueueMessage
from conquiet.rabbit import RabbitConsumer, SchemaRegistry
from conquiet.runtime import Consumer, RuntimeMessage
from conquiet.testing import FaultProxy, wait_until_async
from conquiet.transactional import (
    Inbox,
    Outbox,
    effect_once,
    effect_once_async,
    for_processor,
    for_rabbit,
    for_runtime,
)

MESSAGE = QueueMessage("orders", "billing", "1-0", {})

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["asyncmy", "aiomysql"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def make_async_engine() -> AsyncIterator[Callable[..., AsyncEngine]]:
    made: list[AsyncEngine] = []

    def make(url: str, driver: str = "asyncmy", **options: Any) -> AsyncEngine:
        engine = create_async_engine(
            url.replace("+pymysql", f"+{driver}"),
            connect_args={"init_command": "SET SESSION innodb_lock_wait_timeout=2"},
            **options,
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        await engine.dispose()


@pytest.fixture(autouse=True)
def nothing_for_the_collector() -> Iterator[None]:
    """Fail the test that leaves a connection to the garbage collector, and not the one after it."""
    yield
    gc.collect()


@pytest.fixture
def async_engine(
    engine: Engine, db_url: str, make_async_engine: Callable[..., AsyncEngine], driver: str
) -> AsyncEngine:
    """In addition to the fixture ``engine``, which makes the tables."""
    return make_async_engine(db_url, driver)


@pytest.fixture
def counted(engine: Engine) -> Callable[[], int]:
    with DbSession(engine) as session:
        session.execute("CREATE TABLE effect (id BIGINT AUTO_INCREMENT PRIMARY KEY, n INT) ENGINE=InnoDB")

    def count() -> int:
        with DbSession(engine) as session:
            return int(session.execute_scalar("SELECT COUNT(*) FROM effect"))

    return count


async def write(session: AsyncSession | AsyncConnection) -> None:
    await session.execute(text("INSERT INTO effect (n) VALUES (1)"))


async def write_as_handler(_: object, session: AsyncSession | AsyncConnection) -> None:
    await write(session)
    await Outbox().add_async(session, "ledger", {"n": 1})


# ------------------------------------------------------------------ the database
@pytest.mark.parametrize("orm", ["orm", "core"])
async def test_an_effect_happens_once_and_its_message_with_it(
    async_engine: AsyncEngine, counted: Callable[[], int], engine: Engine, orm: str
) -> None:
    source: Any = async_sessionmaker(async_engine) if orm == "orm" else async_engine

    async def work(session: Any) -> None:
        await write_as_handler(MESSAGE, session)

    results = [await effect_once_async(source, Inbox(), MESSAGE, work) for _ in range(3)]

    assert results == [True, False, False]
    assert counted() == 1
    assert Outbox().backlog(engine)["ledger"].waiting == 1


async def test_of_many_runs_at_once_one_has_the_effect(async_engine: AsyncEngine, counted: Callable[[], int]) -> None:
    """The others wait for it, or get a conflict: they never run concurrently."""
    running = 0

    async def work(session: AsyncConnection) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await write(session)

    results = await asyncio.gather(
        *(effect_once_async(async_engine, Inbox(), MESSAGE, work) for _ in range(8)), return_exceptions=True
    )

    assert sum(result is True for result in results) == 1
    assert all(isinstance(result, bool | ConflictError) for result in results), results
    assert counted() == 1


async def test_a_run_that_waits_too_long_is_a_conflict(async_engine: AsyncEngine, engine: Engine) -> None:
    async def work(_: object) -> None:
        pytest.fail("not reached")

    with DbSession(engine) as other, Inbox().once(other, MESSAGE), pytest.raises(MessageInProgressError):
        await effect_once_async(async_engine, Inbox(), MESSAGE, work)


async def test_a_deadlock_that_the_handler_hides_is_raised(
    async_engine: AsyncEngine, engine: Engine, counted: Callable[[], int]
) -> None:
    """The server has rolled back the inbox row: the rest of the handler must not be committed alone."""
    with DbSession(engine) as session:
        session.execute("INSERT INTO effect (id, n) VALUES (1, 0), (2, 0)")
    await _lose_a_deadlock(async_engine, engine)

    assert counted() == 2
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT COUNT(*) FROM conquiet_inbox") == 0


async def _lose_a_deadlock(async_engine: AsyncEngine, engine: Engine) -> None:
    locked, waiting = asyncio.Event(), asyncio.Event()

    async def work(session: AsyncSession) -> None:
        await session.execute(text("UPDATE effect SET n = 1 WHERE id = 1"))
        locked.set()
        await waiting.wait()
        with suppress(Exception):  # the mistake that the test is about
            await session.execute(text("UPDATE effect SET n = 1 WHERE id = 2"))
        await session.execute(text("INSERT INTO effect (n) VALUES (9)"))

    def other() -> None:
        with DbSession(engine) as session:
            # More rows changed: the server picks the other transaction as the victim.
            rows = ", ".join(f"({number}, 0)" for number in range(100, 150))
            session.execute(f"INSERT INTO effect (id, n) VALUES {rows}")
            session.execute("UPDATE effect SET n = 2 WHERE id = 2")
            asyncio.run_coroutine_threadsafe(_set(waiting), loop).result()
            session.execute("UPDATE effect SET n = 2 WHERE id = 1")
            raise RuntimeError("rolled back, too")

    loop = asyncio.get_running_loop()
    running = asyncio.create_task(effect_once_async(async_sessionmaker(async_engine), Inbox(), MESSAGE, work))
    await locked.wait()
    with pytest.raises(RuntimeError):
        await asyncio.to_thread(other)
    with pytest.raises(ConflictError):
        await running


@pytest.mark.parametrize("orm", ["orm", "core"])
async def test_a_lost_connection_that_the_handler_hides_is_not_the_messages_fault(
    async_engine: AsyncEngine, orm: str
) -> None:
    async def work(session: AsyncSession | AsyncConnection) -> None:
        with suppress(DBAPIError):
            await session.execute(text("KILL CONNECTION_ID()"))
        await session.execute(text("SELECT 1"))

    source: Any = async_sessionmaker(async_engine) if orm == "orm" else async_engine
    with pytest.raises(DatabaseUnavailableError):
        await effect_once_async(source, Inbox(), MESSAGE, work)


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_an_orm_session_has_its_effect_once(engine: Engine, counted: Callable[[], int]) -> None:
    def work(session: Session) -> None:
        session.execute(text("INSERT INTO effect (n) VALUES (1)"))
        Outbox().add(session, "ledger", {"n": 1})

    results = [effect_once(sessionmaker(engine), Inbox(), MESSAGE, work) for _ in range(2)]

    assert results == [True, False]
    assert counted() == 1


@pytest.mark.spec("QC-001.16")
async def test_a_lost_reply_to_commit_is_unknown_and_the_inbox_decides(
    engine: Engine,
    db_url: str,
    driver: str,
    make_async_engine: Callable[..., AsyncEngine],
    fault_proxy: Callable[[str], FaultProxy],
    counted: Callable[[], int],
) -> None:
    proxy = fault_proxy(db_url)
    async_engine = make_async_engine(proxy.url_for(db_url), driver)
    async with async_engine.connect() as connection:  # the first connection sends many queries
        await connection.execute(text("SELECT 1"))
    proxy.drop_next_reply(after_request_matching=b"COMMIT")

    with pytest.raises(CommitUnknownError):
        await effect_once_async(async_engine, Inbox(), MESSAGE, write)

    assert counted() == 1, "the server has committed"
    assert not await effect_once_async(async_engine, Inbox(), MESSAGE, write)
    assert counted() == 1
    await async_engine.dispose()  # before the proxy ends: aiomysql does not close a connection that is lost by then


async def test_the_inbox_costs_an_async_handler_one_statement(
    async_engine: AsyncEngine, engine: Engine, counted: Callable[[], int]
) -> None:
    async def questions(*, inbox: bool) -> int:
        async def work(session: AsyncConnection) -> None:
            if not inbox:
                await write(session)
                return
            async with Inbox().once(session, QueueMessage("orders", "billing", "2-0", {})) as first_time:
                assert first_time
            await write(session)

        from conquiet.transactional.async_transaction import AsyncTransaction

        def asked() -> int:
            with engine.connect() as connection:
                return int(connection.execute(text("SHOW GLOBAL STATUS LIKE 'Questions'")).one()[1])

        before = asked()
        async with AsyncTransaction(async_engine) as connection:
            await work(connection)
        return asked() - before

    await questions(inbox=False)

    assert await questions(inbox=True) - await questions(inbox=False) == 1


# ------------------------------------------------------------------ the engines
@pytest.mark.parametrize("orm", ["orm", "core"])
async def test_the_runtime_runs_an_async_handler_with_its_own_group(
    async_engine: AsyncEngine, engine: Engine, redis_url: str, key_prefix: str, counted: Callable[[], int], orm: str
) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    stream = f"{key_prefix}orders"
    for number in range(5):
        await client.xadd(stream, {"data": f'{{"n": {number}}}'})
    seen: list[str] = []

    async def handle(message: RuntimeMessage, session: Any) -> None:
        seen.append(message.id)
        await write_as_handler(message, session)

    source: Any = async_sessionmaker(async_engine) if orm == "orm" else async_engine
    handler = for_runtime(handle, engine=source)
    async with Consumer(streams=[stream], redis=client, handler=handler, group="shop", concurrency=3):
        await wait_until_async(lambda: counted() == 5, message="all effects")

    with DbSession(engine) as session:
        groups = session.fetch_all("SELECT DISTINCT consumer_group AS g FROM conquiet_inbox")
    assert [bytes(row["g"]) for row in groups] == [b"shop"]
    await client.aclose()


async def test_the_processor_runs_an_async_handler_once(
    async_engine: AsyncEngine, redis_url: str, key_prefix: str, counted: Callable[[], int]
) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    processor = Processor(client, [f"{key_prefix}jobs"], group="shop")
    runs: list[int] = []

    async def paid(ctx: JobContext, session: AsyncSession) -> None:
        runs.append(ctx.attempt)
        await write(session)

    inner = for_processor(paid, engine=async_sessionmaker(async_engine))

    @processor.handler("paid")
    async def twice(ctx: JobContext) -> None:
        await inner(ctx)
        await inner(ctx)

    async with processor:
        await processor.emit("paid", {"n": 1})
        await wait_until_async(lambda: counted() == 1, message="its effect")
    assert len(runs) == 1
    await client.aclose()


async def test_rabbitmq_runs_an_async_handler_once(
    async_engine: AsyncEngine, amqp_url: str, key_prefix: str, counted: Callable[[], int]
) -> None:
    import pika

    queue = f"{key_prefix}orders"
    connection = await asyncio.to_thread(pika.BlockingConnection, pika.URLParameters(amqp_url))
    connection.channel().queue_declare(queue, durable=True)
    for _ in range(2):
        properties = pika.BasicProperties(message_id="m-1", content_type="application/json")
        connection.channel().basic_publish("", queue, b'{"n": 1}', properties)
    connection.close()

    async def handle(_: object, session: AsyncConnection) -> None:
        await write(session)

    syncer = for_rabbit(handle, engine=async_engine)
    schemas = SchemaRegistry(built_in=False).register_default()
    async with RabbitConsumer(amqp_url, queue, syncer, schemas=schemas, concurrency=2) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 2, message="both settled")

    assert counted() == 1
