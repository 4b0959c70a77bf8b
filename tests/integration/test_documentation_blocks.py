"""The Python code on the pages of the documentation, run with the names that a page leaves to its reader.

Blocks that are marked as fragments are left out; see tests/unit/repository/test_code_blocks.py.
"""

import ast
import asyncio
import inspect
import re
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
import redis.asyncio
from pika.adapters.blocking_connection import BlockingChannel
from sqlalchemy import Engine, create_engine, text

from conquiet import DbConfig, DbWriter, LockStrategy, QueueConfig, QueueConsumer, runtime
from conquiet.app import TestApp
from conquiet.errors import MalformedMessageError
from conquiet.management import JobAdmin
from conquiet.processor import DeadFilter, JobContext, Processor, RetryPolicy
from conquiet.rabbit import DeliveryFilter, Outgoing, Publisher, RabbitDeadLetters, SchemaRegistry
from conquiet.scheduler import Cron, Every, ScheduleEntry, Scheduler
from conquiet.testing import wait_until
from conquiet.transactional import Inbox, Outbox, Purger, create_tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"(<!-- fragment: [^\n]* -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_page(page: str, **names: Any) -> dict[str, Any]:
    """Run the blocks of a page that are not marked, from top to bottom; return the names that they leave."""
    for code in _blocks(page):
        exec(code, names)
    return names


async def run_async_page(page: str, **names: Any) -> dict[str, Any]:
    """The same for a page with blocks that await something."""
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


async def test_the_applications_of_moving_here_handle_their_messages(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setenv("DB_URL", f"sqlite:///{tmp_path / 'shop.db'}")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")  # TestApp needs none
    names = run_page("moving-here.md")
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (order_id TEXT, cents INT)"))
    async with TestApp(names["app"]) as t:
        await asyncio.to_thread(names["checkout"])
        await names["packed"]()
        await t.emit("order.refunded", names["OrderPaid"]("4711", 500))
        assert await t.drain() == 2  # the refund and its receipt; the others are delayed
        t.clock.advance(60)
        assert await t.drain() == 2
    assert t.dead_letters == []
    with engine.connect() as connection:
        assert connection.execute(text("SELECT cents FROM ledger")).scalars().all() == [-500, 500]
    engine.dispose()
    assert capsys.readouterr().out == "receipt for 4711\n"


def test_a_writer_with_both_locks_waits_for_an_old_process(db_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the class of the page the two processes hold locks of different names, and both write."""
    monkeypatch.setenv("DB_URL", db_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    names = run_page("moving-here.md")
    engine = create_engine(db_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id INT PRIMARY KEY, balance INT) ENGINE=InnoDB"))
        connection.execute(text("INSERT INTO accounts VALUES (7, 100)"))
    writer = DbWriter(engine, DbConfig("accounts"), lock_strategy=LockStrategy.ADVISORY)
    names["with_both_locks"](writer)
    waiting = text("SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'User lock%'")
    done = threading.Event()

    def write() -> None:
        writer.modify(7, lambda row: {"balance": row["balance"] - 30})
        done.set()

    with engine.connect() as old, ThreadPoolExecutor(1) as thread:
        assert old.execute(text("SELECT GET_LOCK('conquiet_lock:accounts:7', 10)")).scalar() == 1
        future = thread.submit(write)
        wait_until(lambda: old.execute(waiting).scalar_one() == 1)
        assert not done.is_set()
        assert old.execute(text("SELECT RELEASE_LOCK('conquiet_lock:accounts:7')")).scalar() == 1
        future.result(60)

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


async def test_rabbit_from_scratch_ends_with_its_dead_letter_replayed(
        amqp_url: str, channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("CONQUIET_RABBIT_URL", amqp_url)
    try:
        await run_async_page("rabbit-from-scratch.md")
        wait_until(lambda: channel.queue_declare("crm-sync", passive=True).method.message_count == 1)
    finally:
        for queue in ("crm-sync", "crm-sync.dead"):
            channel.queue_delete(queue)
        channel.exchange_delete("crm-dlx")


async def test_the_blocks_of_scheduler(async_client: redis.asyncio.Redis) -> None:
    nightly = ScheduleEntry("nightly-report", Every(3600), "report.make", "reports")
    async with Scheduler(async_client, [nightly]) as scheduler:
        await run_async_page("scheduler.md", scheduler=scheduler, ScheduleEntry=ScheduleEntry, Cron=Cron)

        assert [status.entry.name for status in await scheduler.list_entries()] == ["nightly-report"]


async def test_an_order_of_the_sqlalchemy_page_is_paid_by_both_kinds(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setenv("DB_URL", f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")  # TestApp needs none
    names = await run_async_page("sqlalchemy.md")
    order = names["Order"]
    async with TestApp(names["app"]) as t:
        await names["create_order"]("7", [9_000, 1_001])
        await t.drain()
        for _ in range(2):  # the second delivery has no effect
            await t.deliver("order.paid", {"order_id": "7"}, message_id="again")
        await t.drain()
        assert [one.event for one in t.emitted].count("order.large") == 2
    async with names["sessions"]() as session, session.begin():
        found = await session.get_one(order, "7")
        assert found.paid
        found.paid = False
    async with TestApp(names["plain"]) as t:
        await t.emit("order.paid", names["OrderPaid"]("7"))
        await t.drain()
    async with names["sessions"]() as session:
        assert (await session.get_one(order, "7")).paid
    await names["engine"].dispose()
    assert capsys.readouterr().out == "review 7\n" * 2


def test_the_blocks_of_tables() -> None:
    names = run_page("tables.md", Base=types.SimpleNamespace(metadata="theirs"))

    assert "conquiet_inbox" in names["target_metadata"][1].tables


def test_the_blocks_of_testing() -> None:
    names = run_page("testing.md")

    assert names["pytest_plugins"] == ["conquiet.testing.pytest_plugin"]
