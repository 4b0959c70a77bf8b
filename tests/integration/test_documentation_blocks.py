"""The Python code on the pages of the documentation, run with the names that a page leaves to its reader.

Blocks that are marked as fragments are left out; see tests/unit/test_code_blocks.py.
"""

import ast
import asyncio
import inspect
import re
import types
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
import redis.asyncio
from pika.adapters.blocking_connection import BlockingChannel
from sqlalchemy import Engine, create_engine, text

from conquiet import DbConfig, DbWriter, LockStrategy, QueueConfig, QueueConsumer, runtime
from conquiet.errors import MalformedMessageError
from conquiet.management import JobAdmin
from conquiet.processor import DeadFilter, JobContext, Processor, RetryPolicy
from conquiet.rabbit import DeliveryFilter, Outgoing, Publisher, RabbitDeadLetters, SchemaRegistry
from conquiet.scheduler import Cron, Every, ScheduleEntry, Scheduler
from conquiet.transactional import Inbox, Outbox, Purger, create_tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"(<!-- fragment: [^\n]* -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_page(page: str, **names: Any) -> dict[str, Any]:
    """Run the blocks of a page that are not marked, from top to bottom; return the names that they leave."""
    for code in _blocks(page):
        exec(code, names)
    return names


async def run_async_page(page: str, **names: Any) -> dict[str, Any]:
    """The same for a page whose blocks await something."""
    for code in _blocks(page):
        result = types.FunctionType(code, names)()
        if inspect.isawaitable(result):
            await result
    return names


def _blocks(page: str) -> list[types.CodeType]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [match[2] for match in _BLOCK.finditer(text) if not match[1]]
    assert found, f"{page} has no block to run"
    return [compile(block, f"docs/{page}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT) for block in found]


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as made:
        yield made


@pytest.fixture
async def async_client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url) as made:
        yield made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    create_tables(made)
    yield made
    made.dispose()


@pytest.fixture
def channel(amqp_url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    yield connection.channel()
    connection.close()


def test_the_blocks_of_exactly_once(engine: Engine) -> None:
    run_page("exactly-once.md", engine=engine, inbox=Inbox(), Inbox=Inbox, Outbox=Outbox, Purger=Purger)


def test_the_blocks_of_housekeeping(client: redis.Redis, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made and closed; what each of them removes is tested in its own package."""
    with QueueConsumer(client, QueueConfig("orders", "billing", "one", block_ms=50)) as consumer:
        monkeypatch.setattr(consumer, "run", lambda **_: None)  # it would run until it is stopped
        run_page("housekeeping.md", redis=client, engine=engine, runtime=runtime, consumer=consumer,
            handle=lambda message, ctx: None, inbox=Inbox(), outbox=Outbox())  # fmt: skip

    assert client.xlen("orders") == 1


async def test_the_blocks_of_jobs(async_client: redis.asyncio.Redis) -> None:
    names = await run_async_page("jobs.md")
    processor = Processor(async_client, ["orders"])
    processor.handler("price")(names["price"])
    await processor.emit("mail.remind", {"to": 1}, id="later", delay_s=7_200)

    assert await names["old_reminders"](async_client) == []  # younger than an hour
    async with processor:
        assert await names["price_of"](processor, 7) == 12.5
    assert [job.id for job in (await JobAdmin(async_client, "orders").list("delayed")).jobs] == ["later"]


def test_the_blocks_of_locking(db_url: str) -> None:
    engine = create_engine(db_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id INT PRIMARY KEY, balance INT) ENGINE=InnoDB"))
        connection.execute(text("INSERT INTO accounts VALUES (7, 100)"))
    run_page("locking.md", engine=engine, account_id=7, DbWriter=DbWriter, DbConfig=DbConfig,
        LockStrategy=LockStrategy)  # fmt: skip

    with engine.connect() as connection:
        assert connection.execute(text("SELECT balance FROM accounts")).scalar_one() == 70
    engine.dispose()


async def test_the_blocks_of_processor(async_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch,
        redis_url: str) -> None:  # fmt: skip
    from_url = redis.Redis.from_url
    monkeypatch.setattr(redis.Redis, "from_url", lambda _: from_url(redis_url))
    processor = Processor(async_client, ["email"])

    @processor.handler("email.send", retry=RetryPolicy(max_attempts=1))
    async def send(ctx: JobContext) -> None:
        raise TimeoutError

    async with processor:
        await processor.emit("email.send", {"to": "joe@example.org"})
        dead = processor.dead_letters("email")
        async with asyncio.timeout(60):
            while not (await dead.list(limit=1)).items:  # noqa: ASYNC110 - the letter is in Redis
                await asyncio.sleep(0.01)
        names = await run_async_page("processor.md", processor=processor, DeadFilter=DeadFilter)
        names["emitter"].close()

    assert await async_client.xlen("email") > 0


def test_the_blocks_of_queue(client: redis.Redis, engine: Engine) -> None:
    saved: list[Any] = []
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE payments (order_id INT)"))
    with QueueConsumer(client, QueueConfig("orders", "billing", "one", block_ms=50)) as consumer:
        consumer.queue.enqueue({"order": 7})
        client.xadd("orders", {"strange": "entry"})
        handled: Callable[..., None] = consumer.run

        def run(*, handler: Any, **options: Any) -> None:
            """Handle one message instead of running until a signal."""

            def once(msg: Any, session: Any) -> None:
                handler(msg, session)
                consumer.stop()

            handled(handler=once, **options)

        proxy = types.SimpleNamespace(run=run, next=None, ack_id=consumer.ack_id)
        with QueueConsumer(client, QueueConfig("orders", "billing", "two", block_ms=50)) as second:
            proxy.next, proxy.ack_id = second.next, second.ack_id
            run_page("queue.md", consumer=proxy, engine=engine, MalformedMessageError=MalformedMessageError,
                save=lambda *facts: saved.append(facts))  # fmt: skip

    with engine.connect() as connection:
        assert connection.execute(text("SELECT order_id FROM payments")).scalar_one() == 7
    assert len(saved) == 1


async def test_the_blocks_of_rabbit(amqp_url: str, channel: BlockingChannel) -> None:
    for queue in ("crm-sync", "crm-dead"):
        channel.queue_declare(queue, durable=True)
    try:
        await run_async_page(
            "rabbit.md",
            url=amqp_url,
            SchemaRegistry=SchemaRegistry,
            Order=lambda data: data,
            Publisher=Publisher,
            Outgoing=Outgoing,
            orders=[{"number": 8}],
            RabbitDeadLetters=RabbitDeadLetters,
            DeliveryFilter=DeliveryFilter,
        )
        assert channel.queue_declare("crm-sync", passive=True).method.message_count == 2
    finally:
        for queue in ("crm-sync", "crm-dead"):
            channel.queue_delete(queue)


async def test_the_blocks_of_scheduler(async_client: redis.asyncio.Redis) -> None:
    nightly = ScheduleEntry("nightly-report", Every(3600), "report.make", "reports")
    async with Scheduler(async_client, [nightly]) as scheduler:
        await run_async_page("scheduler.md", scheduler=scheduler, ScheduleEntry=ScheduleEntry, Cron=Cron)

        assert [status.entry.name for status in await scheduler.list_entries()] == ["nightly-report"]


def test_the_blocks_of_tables() -> None:
    names = run_page("tables.md", Base=types.SimpleNamespace(metadata="theirs"))

    assert "conquiet_inbox" in names["target_metadata"][1].tables


def test_the_blocks_of_testing() -> None:
    names = run_page("testing.md")

    assert names["pytest_plugins"] == ["conquiet.testing.pytest_plugin"]
