"""Today's code reads the data that each released version stored (written by scripts/stored_fixtures.py)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import stored_fixtures
from sqlalchemy import Engine, create_engine, text

from conquiet import QueueConfig
from conquiet.management import JobAdmin
from conquiet.processor import DeadFilter, JobContext, Processor, ProcessorSettings
from conquiet.queue import QueueConsumer
from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.transactional import Inbox, InboxKey, OutboxRelay, ToStream, create_tables, outbox_id_of

FILES = sorted((Path(__file__).resolve().parents[1] / "fixtures" / "stored").glob("*.json"))


@pytest.fixture(params=FILES, ids=[file.stem for file in FILES])
def stored(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def client(redis_url: str, stored: dict[str, Any]) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as made:
        stored_fixtures.restore(made, stored["redis"])
        yield made


@pytest.fixture
async def async_client(client: redis.Redis, redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url) as made:
        yield made


@pytest.fixture(params=["mysql", "postgresql", "sqlite"])
def engine(
    request: pytest.FixtureRequest, db_url: str, postgres_url: str, tmp_path: Path, stored: dict[str, Any]
) -> Iterator[Engine]:
    urls = {"mysql": db_url, "postgresql": postgres_url, "sqlite": f"sqlite:///{tmp_path / 'shop.db'}"}
    made = create_engine(urls[request.param])
    create_tables(made)
    stored_fixtures.insert_rows(made, stored["rows"])
    yield made
    made.dispose()


def test_there_is_a_file_for_this_release() -> None:
    assert [file.stem for file in FILES][:1] == ["0.1.0"]


def test_the_queue_reads_pending_and_waiting_entries(client: redis.Redis) -> None:
    with QueueConsumer(client, QueueConfig("payments", "billing", "old-worker", block_ms=100)) as consumer:
        (pending,) = consumer.recover_own()
        waiting = consumer.next()
        again = consumer.queue.enqueue({"order": 1, "name": "Zoë"}, idempotency_key="order-1")

    assert pending.payload == {"order": 1, "name": "Zoë"}
    assert waiting is not None
    assert waiting.payload == {"order": 2}
    assert again == pending.id


async def test_the_processor_handles_waiting_delayed_dead_and_ordered_messages(
    async_client: redis.asyncio.Redis,
) -> None:
    handled: dict[str, Any] = {}
    all_done = asyncio.Event()
    processor = Processor(async_client, ["orders"], settings=ProcessorSettings(job_ttl_s=86_400))

    async def handle(ctx: JobContext) -> None:
        handled[ctx.id] = ctx.data
        if len(handled) == 5:
            all_done.set()

    processor.handler("order.paid")(handle)
    processor.handler("order.refused")(handle)
    dead = processor.dead_letters("orders")
    (letter,) = (await dead.list(limit=10)).items
    assert letter.id
    await JobAdmin(async_client, "orders").run_now("delayed-6")
    assert (await processor.emit("order.paid", {"order": 5}, id="waiting-5")).duplicate
    async with processor:
        assert (await dead.replay(DeadFilter())).replayed == 1
        async with asyncio.timeout(60):
            await all_done.wait()

    assert handled == {
        "refused-3": {"order": 3},
        "waiting-5": {"order": 5, "name": "Zoë"},
        "delayed-6": {"order": 6},
        "keyed-7": {"order": 7},
        "keyed-8": {"order": 8},
    }
    assert [key for key in handled if key.startswith("keyed")] == ["keyed-7", "keyed-8"]


async def test_states_of_jobs_are_read(async_client: redis.asyncio.Redis) -> None:
    jobs = JobAdmin(async_client, "orders")
    stories = {name: await jobs.show(name) for name in ("done-4", "delayed-6", "refused-3", "cancelled-9")}

    phases = {name: story.phase and story.phase.value for name, story in stories.items()}
    assert phases == {"done-4": "succeeded", "delayed-6": "delayed", "refused-3": "dead", "cancelled-9": "cancelled"}
    assert stories["done-4"].has_result
    assert stories["refused-3"].error_type == "conquiet.processor.policy.Reject"


async def test_schedules_and_pauses_are_read(async_client: redis.asyncio.Redis) -> None:
    hourly = ScheduleEntry("hourly", Every(3600), "report.make", "reports", {"kind": "sales"})
    async with Scheduler(async_client, [hourly]) as scheduler:
        found = {status.entry.name: status for status in await scheduler.list_entries()}

    assert set(found) == {"hourly", "added"}
    assert found["added"].paused_since is not None
    assert found["hourly"].paused_since is None


def test_a_message_in_the_inbox_is_known(engine: Engine, client: redis.Redis) -> None:
    inbox = Inbox()
    with QueueConsumer(client, QueueConfig("payments", "billing", "old-worker", block_ms=100)) as consumer:
        (pending,) = consumer.recover_own()
    with engine.begin() as connection:
        for message in (InboxKey("orders", "billing", "order-1"), pending):
            with inbox.once(connection, message) as first_time:
                assert not first_time


def test_a_row_of_the_outbox_is_published(engine: Engine, client: redis.Redis, stored: dict[str, Any]) -> None:
    with OutboxRelay(engine, {"ledger": ToStream(client, "ledger")}) as relay:
        assert relay.drain().published == 1

    with QueueConsumer(client, QueueConfig("ledger", "books", "one", block_ms=100)) as consumer:
        message = consumer.next()
    assert message is not None
    assert message.payload.items() >= {"order": 1, "name": "Zoë"}.items()
    assert outbox_id_of(message.payload) == stored["rows"]["conquiet_outbox"][0]["message_id"]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM conquiet_outbox")).scalar_one() == 0
