"""A stranger names the cause from the log alone, for ten planted problems; no line holds a secret."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import pytest
import redis
from sqlalchemy import create_engine

from conquiet.app import App, AppSettings
from conquiet.core.backoff import Backoff
from conquiet.db import DbSession
from conquiet.errors import GroupMissingError
from conquiet.processor import JobContext, Processor, ProcessorSettings, RetryPolicy
from conquiet.runtime.settings import RuntimeSettings
from conquiet.testing import FaultProxy, wait_until_async
from conquiet.transactional import create_tables, for_processor

CANARY = "jane@example.org"
SECRET = "s3cret-pass"
FAST = Backoff(base_s=0.02, cap_s=0.1)
RUNTIME = RuntimeSettings(reconnect=FAST, outage=FAST, max_reconnects=10_000, claim_idle_ms=600)
RETRY = ProcessorSettings(retry=RetryPolicy.fixed(0.01, max_attempts=2))

Handler = Callable[..., Any]


class Order(msgspec.Struct):
    """The payload of an event."""

    amount: int


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as made:
        yield made


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return the lines so far; afterwards no secret is in any of them, nor in a field."""
    caplog.set_level(logging.DEBUG, "conquiet")
    yield lambda: [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    whole = str(
        [(record.getMessage(), vars(record)) for record in caplog.records if record.name.startswith("conquiet")]
    )
    assert CANARY not in whole
    assert SECRET not in whole


def processor(client: redis.Redis, prefix: str, handler: Handler, **options: Any) -> Processor:
    made = Processor(client, [f"{prefix}orders"], runtime=RUNTIME, settings=RETRY, **options)
    made.handler("paid")(handler)
    return made


async def shown(lines: Callable[[], list[str]], *words: str) -> str:
    """Wait for a line with all these words and return it."""

    def found() -> str | None:
        return next((line for line in lines() if all(word in line for word in words)), None)

    await wait_until_async(lambda: found() is not None, message=lambda: "\n".join(lines()))
    return found() or ""


def with_password(url: str, password: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"shop:{password}@{parts.hostname}:{parts.port}"))


async def test_a_wrong_password_of_the_database(
    client: redis.Redis, key_prefix: str, db_url: str, lines: Callable[[], list[str]]
) -> None:
    engine = create_engine(with_password(db_url, SECRET))
    async with processor(client, key_prefix, for_processor(lambda ctx, session: None, engine=engine)) as made:
        await made.emit("paid", {"mail": CANARY})
        line = await shown(lines, "consumption paused")

    assert "the server refused the user name or the password" in line
    assert f"server 127.0.0.1:{engine.url.port}/" in line
    assert line.startswith("WARNING")


async def test_a_missing_table(
    client: redis.Redis, key_prefix: str, tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    async with processor(client, key_prefix, for_processor(lambda ctx, session: None, engine=engine)) as made:
        await made.emit("paid", {"mail": CANARY})
        line = await shown(lines, "handler of paid failed", "attempt 1 of 2")
    engine.dispose()

    assert "the table conquiet_inbox does not exist" in line
    assert "conquiet db init" in line


async def test_a_bug_in_a_handler(client: redis.Redis, key_prefix: str, lines: Callable[[], list[str]]) -> None:
    async def charge(ctx: JobContext) -> None:
        raise KeyError(ctx.data["mail"])

    async with processor(client, key_prefix, charge) as made:
        emitted = await made.emit("paid", {"mail": CANARY})
        first = await shown(lines, "handler of paid failed")
        last = await shown(lines, "dead-lettered")

    assert first.startswith(
        f"WARNING handler of paid failed for message {emitted.id}, attempt 1 of 2, next try in 0.0 s"
    )
    assert "KeyError at tests/integration/otel/test_ten_problems.py:" in first
    assert " in charge" in first
    assert last.startswith(
        f"ERROR message {emitted.id} of event paid dead-lettered (attempts_exhausted), attempt 2 of 2"
    )


async def test_redis_away(
    redis_url: str, key_prefix: str, fault_proxy: Callable[[str], FaultProxy], lines: Callable[[], list[str]]
) -> None:
    async def handle(ctx: JobContext) -> None:
        """Do nothing."""

    proxy = fault_proxy(redis_url)
    through = redis.Redis.from_url(proxy.url_for(redis_url))
    async with processor(through, key_prefix, handle):
        proxy.refuse()
        proxy.disconnect()
        await shown(lines, "Redis at 127.0.0.1", "is unavailable")
        await asyncio.sleep(0.5)  # an outage of many attempts
        proxy.accept()
        end = await shown(lines, "is available again after")
        outage = [line for line in lines() if "is unavailable" in line]

    assert len(outage) == 1, lines()
    assert f"Redis at 127.0.0.1:{proxy.port} is unavailable; " in outage[0]
    assert "until it is back" in outage[0]
    assert f"Redis at 127.0.0.1:{proxy.port} is available again after" in end
    through.close()


async def test_the_database_away(
    client: redis.Redis,
    key_prefix: str,
    db_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    lines: Callable[[], list[str]],
) -> None:
    proxy = fault_proxy(db_url)
    engine = create_engine(proxy.url_for(db_url))
    create_tables(engine)
    async with processor(client, key_prefix, for_processor(lambda ctx, session: None, engine=engine)) as made:
        proxy.refuse()
        proxy.disconnect()
        engine.dispose()
        await made.emit("paid", {"mail": CANARY})
        begin = await shown(lines, "consumption paused")
        proxy.accept()
        end = await shown(lines, "consumption resumed after")

    assert "the server could not be reached" in begin
    assert f"server 127.0.0.1:{proxy.port}/" in begin
    assert len([line for line in lines() if "consumption paused" in line]) == 1
    assert end.startswith("WARNING")


async def test_a_pool_that_is_too_small(
    client: redis.Redis, key_prefix: str, db_url: str, lines: Callable[[], list[str]]
) -> None:
    engine = create_engine(db_url, pool_size=1, max_overflow=0, pool_timeout=0.2)
    create_tables(engine)

    def handle(ctx: Any, session: DbSession) -> None:
        with DbSession(engine):
            """Wait for a second connection, which never comes."""

    async with processor(client, key_prefix, for_processor(handle, engine=engine), concurrency=2) as made:
        await made.emit("paid", {"mail": CANARY})
        before = await shown(lines, "the concurrency is 2", "at most 1 connections")
        line = await shown(lines, "consumption paused")

    assert "pool_size=2" in before
    assert "The pool lends at most 1 " in line


async def test_a_group_that_was_deleted(client: redis.Redis, key_prefix: str, lines: Callable[[], list[str]]) -> None:
    async def handle(ctx: JobContext) -> None:
        """Do nothing."""

    made = processor(client, key_prefix, handle)
    running = asyncio.create_task(made.run())
    await wait_until_async(lambda: made.health().ready)
    client.xgroup_destroy(f"{key_prefix}orders", "processor")
    with pytest.raises(GroupMissingError):
        await running
    await made.close()

    line = await shown(lines, "worker ends because of an error")
    assert line.startswith("ERROR")
    assert "the stream or its consumer group is gone" in line
    assert f"{key_prefix}orders" in line


async def test_an_event_without_a_handler(client: redis.Redis, key_prefix: str, lines: Callable[[], list[str]]) -> None:
    async def handle(ctx: JobContext) -> None:
        """Do nothing."""

    async with processor(client, key_prefix, handle) as made:
        await made.emit("payed", {"mail": CANARY})
        line = await shown(lines, "no handler for event payed")

    assert "Known: paid" in line


async def test_a_payload_that_does_not_fit(redis_url: str, key_prefix: str, lines: Callable[[], list[str]]) -> None:
    app = App(f"{key_prefix}shop", redis=redis_url, settings=AppSettings(runtime=RUNTIME))

    @app.handler("paid")
    async def book(order: Order) -> None:
        """Do nothing."""

    running = asyncio.create_task(app.run())
    await wait_until_async(lambda: app.health().ready)
    client = redis.Redis.from_url(redis_url)
    emitter = Processor(client, [app.assembly.stream])
    await emitter.emit("paid", {"amount": CANARY})
    line = await shown(lines, "dead-lettered (rejected)")
    await emitter.close()
    client.close()
    app.stop()
    await running

    assert "$.amount" in line or "amount" in line
    assert "int" in line


async def test_a_lost_lease(client: redis.Redis, key_prefix: str, lines: Callable[[], list[str]]) -> None:
    stream = f"{key_prefix}orders"
    started = asyncio.Event()

    async def handle(ctx: JobContext) -> None:
        started.set()
        await asyncio.sleep(3_600 if ctx.attempt > 99 else 2)

    async with processor(client, key_prefix, handle) as made:
        emitted = await made.emit("paid", {"mail": CANARY})
        await asyncio.wait_for(started.wait(), 60)
        assert emitted.entry_id is not None
        client.xclaim(stream, "processor", "another", 0, [emitted.entry_id])
        line = await shown(lines, "LeaseLostError")

    assert f"message {emitted.entry_id} of stream" in line
    assert "belongs to another consumer" in line
