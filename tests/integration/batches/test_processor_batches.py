"""Batch handlers of a ``Processor``: one transaction, a settlement for each message."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.integration.batches.conftest import Database, MakeDatabase

from conquiet.core.lifecycle import Status
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, DatabaseUnavailableError, LeaseLostError
from conquiet.processor import JobContext, Processor, ProcessorSettings, RetryPolicy
from conquiet.processor.keys import keys_of
from conquiet.testing import wait_until_async
from conquiet.transactional import Inbox, InboxKey, for_processor_batch, for_processor_shared_transaction

pytestmark = pytest.mark.timeout(120)

INSERT = "INSERT INTO effects (message_id, cents) VALUES (:id, :cents)"


class Shop:
    """A stream, its processors, and what is on the server."""

    def __init__(self, client: redis.asyncio.Redis, stream: str) -> None:
        self.client = client
        self.stream = stream
        self.made: list[Processor] = []

    def processor(self, **options: Any) -> Processor:
        settings = ProcessorSettings(retention=None, job_ttl_s=options.pop("job_ttl_s", None))
        self.made.append(Processor(self.client, [self.stream], settings=settings, **options))
        return self.made[-1]

    async def emit(self, count: int, first: int = 0) -> None:
        from conquiet.processor import NewMessage

        sender = self.made[0]
        await sender.emit_many(
            [NewMessage("paid", {"n": number}, id=f"m{number:03}") for number in range(first, first + count)]
        )

    async def pending(self) -> int:
        try:
            return int((await self.client.xpending(self.stream, "processor"))["pending"])
        except redis.asyncio.ResponseError:
            return -1

    async def done(self) -> bool:
        info: Any = await self.client.xinfo_groups(self.stream)
        return bool(info) and info[0]["lag"] == 0 and await self.pending() == 0

    async def dead(self) -> dict[str, Any]:
        page = await self.made[0].dead_letters().list()
        return {letter.record.id: letter.record for letter in page.items}


@pytest.fixture
async def shop(redis_url: str, key_prefix: str) -> AsyncIterator[Shop]:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        shop = Shop(client, f"{key_prefix}orders")
        yield shop
        for processor in shop.made:
            await processor.close()


def ids(*numbers: int) -> list[str]:
    return [f"m{number:03}" for number in numbers]


def rows(contexts: list[Any]) -> list[dict[str, Any]]:
    return [{"id": ctx.id, "cents": ctx.data["n"]} for ctx in contexts]


async def test_a_batch_is_one_transaction_and_one_list_without_duplicates(shop: Shop, database: Database) -> None:
    processor = shop.processor()
    seen: list[list[str]] = []
    with DbSession(database.engine) as session:  # messages 3 and 7 had their effect in an earlier life
        for known in ids(3, 7):
            Inbox().record(session, InboxKey(shop.stream, "processor", known))

    def handle(contexts: list[JobContext], session: DbSession) -> None:
        seen.append([ctx.id for ctx in contexts])
        session.execute(INSERT, rows(contexts))

    processor.handler("paid", batch=10, within_s=5.0)(for_processor_batch(handle, engine=database.engine))
    await shop.emit(20)
    async with processor:
        await wait_until_async(shop.done, message="everything is acknowledged")

    assert seen == [ids(0, 1, 2, 4, 5, 6, 8, 9), ids(*range(10, 20))]
    assert database.effects() == ids(*(n for n in range(20) if n not in {3, 7}))
    assert database.count("conquiet_inbox") == 20


ASYNC = [
    ("mysql", "pymysql", "asyncmy"),
    ("postgresql", "psycopg", "psycopg"),
    ("sqlite", "sqlite:", "sqlite+aiosqlite:"),
]


@pytest.mark.parametrize(("kind", "before", "after"), ASYNC, ids=[after for _, _, after in ASYNC])
@pytest.mark.parametrize("mode", ["batch", "group"])
async def test_a_poisoned_async_batch_costs_only_the_guilty_message(
    kind: str, before: str, after: str, mode: str, shop: Shop, make_database: MakeDatabase
) -> None:
    database = make_database(kind)
    engine = create_async_engine(database.url.replace(before, after))
    processor = shop.processor()

    async def handle(contexts: list[JobContext], session: AsyncConnection) -> None:
        await session.execute(text(INSERT), rows(contexts))
        if any(ctx.data["n"] == 5 for ctx in contexts):
            raise ValueError("the amount of message 5 is wrong")

    async def handle_one(ctx: JobContext, session: AsyncConnection) -> None:
        await handle([ctx], session)

    made = (
        for_processor_batch(handle, engine=engine)
        if mode == "batch"
        else for_processor_shared_transaction(handle_one, engine=engine)
    )
    processor.handler("paid", batch=12, within_s=5.0)(made)
    await shop.emit(12)
    try:
        async with processor:
            await wait_until_async(shop.done, message="everything is settled")
    finally:
        await engine.dispose()

    assert database.effects() == ids(*(n for n in range(12) if n != 5))
    assert list(await shop.dead()) == ids(5)
    assert database.count("conquiet_inbox") == 11


@pytest.mark.parametrize("mode", ["batch", "group"])
async def test_only_the_guilty_message_is_charged_and_dead_lettered_with_its_error(
    mode: str, shop: Shop, database: Database
) -> None:
    processor = shop.processor()
    attempts: dict[str, set[int]] = {}

    def handle(contexts: list[JobContext], session: DbSession) -> None:
        session.execute(INSERT, rows(contexts))
        for ctx in contexts:
            attempts.setdefault(ctx.id, set()).add(ctx.attempt)
            if ctx.data["n"] in {5, 17}:
                raise ZeroDivisionError if ctx.data["n"] == 5 else KeyError("17")

    def handle_one(ctx: JobContext, session: DbSession) -> None:
        handle([ctx], session)

    made = (
        for_processor_batch(handle, engine=database.engine)
        if mode == "batch"
        else for_processor_shared_transaction(handle_one, engine=database.engine)
    )
    processor.handler("paid", batch=20, within_s=5.0, retry=RetryPolicy.fixed(0.01, max_attempts=2))(made)
    await shop.emit(20)
    async with processor:
        await wait_until_async(lambda: _dead_count(shop, 2), message="both are dead")
        await wait_until_async(shop.done, message="everything is settled")

    assert database.effects() == ids(*(n for n in range(20) if n not in {5, 17}))
    assert {one: tried for one, tried in attempts.items() if tried != {1}} == {"m005": {1, 2}, "m017": {1, 2}}
    dead_letters = await shop.dead()
    assert {one: (letter.error_type, letter.attempts) for one, letter in dead_letters.items()} == {
        "m005": ("ZeroDivisionError", 2),
        "m017": ("KeyError", 2),
    }


async def _dead_count(shop: Shop, count: int) -> bool:
    return int(await shop.client.xlen(keys_of(shop.stream).dead)) == count


async def test_a_lost_lease_takes_one_message_out_before_commit(shop: Shop, make_database: MakeDatabase) -> None:
    database = make_database("mysql")
    engine = create_async_engine(database.url.replace("pymysql", "asyncmy"))
    processor = shop.processor()
    calls: list[list[str]] = []

    async def handle(contexts: list[JobContext], session: AsyncConnection) -> None:
        calls.append([ctx.id for ctx in contexts])
        await session.execute(text(INSERT), rows(contexts))
        for ctx in contexts:
            if ctx.data["n"] == 2:
                await shop.client.xclaim(shop.stream, "processor", "thief", 0, [ctx.delivery.id])
                with contextlib.suppress(LeaseLostError):
                    await ctx.delivery.extend()

    processor.handler("paid", batch=4, within_s=5.0)(for_processor_batch(handle, engine=engine))
    await shop.emit(4)
    try:
        async with processor:
            await wait_until_async(lambda: _pending_is(shop, 1), message="the others are acknowledged")
    finally:
        await engine.dispose()

    assert calls == [ids(0, 1, 2, 3), ids(0, 1, 3)]
    assert database.effects() == ids(0, 1, 3)
    assert database.count("conquiet_inbox") == 3
    owners: Any = await shop.client.xpending_range(shop.stream, "processor", "-", "+", 10)
    assert [owner["consumer"] for owner in owners] == [b"thief"]


async def _pending_is(shop: Shop, count: int) -> bool:
    info: Any = await shop.client.xinfo_groups(shop.stream)
    return bool(info) and info[0]["lag"] == 0 and await shop.pending() == count


async def test_a_stop_returns_a_batch_that_is_being_gathered_uncharged(shop: Shop) -> None:
    processor = shop.processor()

    @processor.handler("paid", batch=100, within_s=600.0)
    async def handle(contexts: list[JobContext]) -> None:
        raise AssertionError(contexts)

    await shop.emit(3)
    async with processor:
        await wait_until_async(lambda: _pending_is(shop, 3), message="they are being gathered")

    left: Any = await shop.client.xpending_range(shop.stream, "processor", "-", "+", 10)
    assert [row["times_delivered"] for row in left] == [0, 0, 0]
    assert all(row["time_since_delivered"] > 3_600_000 for row in left)


async def test_a_stop_lets_a_running_batch_commit_and_acknowledge(shop: Shop, make_database: MakeDatabase) -> None:
    database = make_database("sqlite")
    engine = create_async_engine(database.url.replace("sqlite:", "sqlite+aiosqlite:"))
    processor = shop.processor()
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(contexts: list[JobContext], session: AsyncConnection) -> None:
        began.set()
        await go_on.wait()
        await session.execute(text(INSERT), rows(contexts))

    processor.handler("paid", batch=5, within_s=5.0)(for_processor_batch(handle, engine=engine))
    await shop.emit(5)
    try:
        running = asyncio.create_task(processor.start())
        await asyncio.wait_for(began.wait(), 30)
        processor.stop()
        go_on.set()
        report = await running
    finally:
        await engine.dispose()

    assert report.succeeded == 5
    assert database.count("effects") == 5
    assert await shop.pending() == 0


async def test_a_batch_handler_without_a_database_is_called_with_lists(shop: Shop) -> None:
    processor = shop.processor(job_ttl_s=60.0)
    sizes: list[int] = []

    @processor.handler("paid", batch=10, within_s=0.0)
    def handle(contexts: list[JobContext]) -> list[Exception | None]:
        sizes.append(len(contexts))
        return [ValueError("odd") if ctx.data["n"] == 4 else None for ctx in contexts]

    @processor.handler("single")
    async def single(ctx: JobContext) -> None:
        sizes.append(-1)

    await shop.emit(25)
    await processor.emit("single", {})
    async with processor:
        await wait_until_async(shop.done, message="everything is settled")

    assert sum(size for size in sizes if size > 0) == 25
    assert max(sizes) <= 10
    assert sizes.count(-1) == 1
    assert list(await shop.dead()) == ids(4)


async def test_an_outage_charges_no_message_of_a_batch(shop: Shop, make_database: MakeDatabase) -> None:
    database = make_database("sqlite")
    processor = shop.processor()
    attempts: list[int] = []

    def handle(contexts: list[JobContext], session: DbSession) -> None:
        attempts.extend(ctx.attempt for ctx in contexts)
        if len(attempts) <= 6:
            raise DatabaseUnavailableError("away")
        session.execute(INSERT, rows(contexts))

    processor.handler("paid", batch=6, within_s=0.5)(for_processor_batch(handle, engine=database.engine))
    await shop.emit(6)
    async with processor:
        await wait_until_async(shop.done, message="everything is settled")

    assert database.effects() == ids(*range(6))
    assert set(attempts) == {1}


async def test_an_orm_session_is_given_to_a_batch_and_to_a_group(shop: Shop, database: Database) -> None:
    processor = shop.processor()
    maker = sessionmaker(database.engine)

    def handle(contexts: list[JobContext], session: Session) -> None:
        session.execute(text(INSERT), rows(contexts))

    def handle_one(ctx: JobContext, session: Session) -> None:
        session.execute(text(INSERT), rows([ctx]))
        if ctx.data["n"] == 12:
            raise ValueError

    processor.handler("paid", batch=10, within_s=5.0)(for_processor_batch(handle, engine=maker))
    await shop.emit(10)
    async with processor:
        await wait_until_async(shop.done, message="the batch is settled")
    second = shop.processor()
    second.handler("paid", batch=5, within_s=5.0)(for_processor_shared_transaction(handle_one, engine=maker))
    await shop.emit(5, first=10)
    async with second:
        await wait_until_async(shop.done, message="the group is settled")

    assert database.effects() == ids(*(n for n in range(15) if n != 12))


def _a_batch(**options: Any) -> Callable[[Processor], object]:
    async def handle(contexts: list[JobContext]) -> None: ...

    return lambda processor: processor.handler("paid", batch=10, **options)(handle)


async def test_a_rate_with_a_batch_is_refused(shop: Shop) -> None:
    from conquiet.processor import RateLimit

    with pytest.raises(ConfigurationError, match="rate"):
        _a_batch(rate=RateLimit(1))(shop.processor())


async def test_a_middleware_around_a_batch_handler_is_refused_at_the_start(shop: Shop) -> None:
    processor = shop.processor()
    _a_batch()(processor)

    async def middleware(ctx: JobContext, call_next: Any) -> object:
        return await call_next(ctx)

    processor.add_middleware(middleware)
    with pytest.raises(ConfigurationError, match="middleware"):
        await processor.start()

    await asyncio.wait_for(processor.close(), 60)
    assert processor.health().status is Status.STOPPED
