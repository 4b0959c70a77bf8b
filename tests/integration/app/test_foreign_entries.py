"""Streams that other programs write, with several plain fields."""

import asyncio
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from sqlalchemy import create_engine, insert
from sqlalchemy.ext.asyncio import AsyncSession
from tests.integration.app.conftest import LEDGER, METADATA, OnServers

from conquiet import App, JobContext, QueueConfig, RedisStreamsQueue, RetryPolicy
from conquiet.app import TestApp
from conquiet.runtime import Consumer, RuntimeMessage
from conquiet.runtime.context import MessageContext


def decode(fields: dict[str, bytes]) -> dict[str, Any]:
    return {"order": int(fields["order"]), "city": fields["city"].decode()}


def paid(fields: dict[str, bytes]) -> dict[str, Any]:
    return {"event": "order.paid", "data": decode(fields)}


def test_a_queue_reads_plain_fields_and_reports_what_it_cannot_read(redis_url: str, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    client = redis.Redis.from_url(redis_url)
    client.xadd(stream, {"order": "x", "city": "Bonn"})
    client.xadd(stream, {"order": 7, "city": "Köln"})

    with RedisStreamsQueue(client, QueueConfig(stream, "group", "one", decode=decode)) as queue:
        batch = queue.read(1_000, count=2)
        queue.ack(batch[0])

    assert [message.payload for message in batch] == [{"order": 7, "city": "Köln"}]
    assert [error.reason for error in batch.malformed] == ["decode() raised ValueError"]
    client.close()


async def test_a_consumer_reads_plain_fields(redis_url: str, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    client = redis.asyncio.Redis.from_url(redis_url)
    refused: list[str] = []
    seen: list[dict[str, Any]] = []
    handled = asyncio.Event()

    async def handle(message: RuntimeMessage, _ctx: MessageContext) -> None:
        seen.append(message.data)
        handled.set()

    async def malformed(message: RuntimeMessage, ctx: MessageContext) -> None:
        refused.append(message.malformed)
        await ctx.ack()

    await client.xadd(stream, {"order": "x", "city": "Bonn"})
    await client.xadd(stream, {"order": 7, "city": "Köln"})
    options: dict[str, Any] = {"handler": handle, "on_malformed": malformed, "decode": decode}
    async with Consumer(streams=[stream], redis=client, group="group", **options), asyncio.timeout(30):
        await handled.wait()

    assert seen == [{"order": 7, "city": "Köln"}]
    assert refused == ["decode() raised ValueError"]
    await client.aclose()


async def test_an_app_books_plain_entries_once_and_retries_them(
    redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """A retry is an envelope in the same stream: both kinds are read side by side."""
    db_url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(db_url)
    METADATA.create_all(engine)
    app = App(f"{key_prefix}shop", redis=redis_url, database=db_url, decode=paid)
    attempts: list[int] = []

    @app.handler("order.paid", retry=RetryPolicy.fixed(0.02, max_attempts=3))
    async def book(order: dict[str, Any], session: AsyncSession, ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        await session.execute(insert(LEDGER).values(order_id=f"{order['order']}"))
        if ctx.attempt == 1:
            raise TimeoutError

    await asyncio.to_thread(app.create_tables)
    servers = OnServers(app, redis_url, engine)
    client = redis.asyncio.Redis.from_url(redis_url)
    await client.xadd(app.assembly.stream, {"order": 7, "city": "Köln"})
    await client.xadd(app.assembly.stream, {"order": "secret", "city": "Bonn"})
    async with app:
        await servers.settle()
        (dead,) = await servers.dead_letters()
    with engine.connect() as connection:
        booked = connection.execute(LEDGER.select()).scalars().all()
    await client.aclose()
    await servers.close()
    engine.dispose()

    assert attempts == [1, 2]
    assert len(booked) == 1
    assert (dead.reason, dead.error, dead.raw) == (
        "malformed",
        "decode() raised ValueError",
        {"order": "secret", "city": "Bonn"},
    )


async def test_plain_entries_are_delivered_in_memory_too(tmp_path: Path) -> None:
    app = App("shop", redis="redis://127.0.0.1:1/0", decode=paid)
    seen: list[int] = []

    @app.handler("order.paid")
    async def book(order: dict[str, Any]) -> None:
        seen.append(order["order"])

    async with TestApp(app) as t:
        await t.deliver_fields({"order": "7", "city": "Köln"})
        await t.deliver_fields({"order": "secret", "city": "Bonn"})
        await t.drain()

    (dead,) = t.dead_letters
    assert seen == [7]
    assert (dead.reason, dead.error) == ("malformed", "decode() raised ValueError")
