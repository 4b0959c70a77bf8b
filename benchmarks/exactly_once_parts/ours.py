"""conquiet: one by one, in groups, in batches; with plain functions and with ``async def``; as an app."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import redis.asyncio
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from conquiet.db.session import DbSession
from conquiet.processor import JobContext, Processor
from conquiet.transactional import for_processor, for_processor_batch, for_processor_shared_transaction
from exactly_once_parts.common import EFFECT, EVENT, SIZE, World

Prepare = Callable[[World, Processor, Callable[[int], None]], Any]
"""Registers a handler that calls back with the number of messages it has handled; returns what to close, if any."""

EFFECTS_MARIADB = text(
    "INSERT INTO effect (message_id, cents) SELECT j.id, j.cents FROM JSON_TABLE(:rows, '$[*]' COLUMNS "
    "(id VARCHAR(64) PATH '$[0]', cents INT PATH '$[1]')) AS j"
)


def many(world: World) -> Callable[[list[Any]], tuple[Any, Any]]:
    """Return the function that makes the multi-row effect of some contexts: a statement and its binds."""
    return effects_of(world.kind)


def effects_of(kind: str) -> Callable[[list[Any]], tuple[Any, Any]]:
    """Return ``many`` for a kind of database."""
    if kind == "mariadb":
        import json

        return lambda contexts: (
            EFFECTS_MARIADB,
            {"rows": json.dumps([(ctx.id, ctx.data["cents"]) for ctx in contexts])},
        )
    statement = text(
        "INSERT INTO effect (message_id, cents) SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:cents AS int[]))"
    )
    return lambda contexts: (
        statement,
        {"ids": [ctx.id for ctx in contexts], "cents": [ctx.data["cents"] for ctx in contexts]},
    )


async def timed(world: World, prepare: Prepare, count: int, *, concurrency: int = 1) -> float:
    """Return effects per second, from the first message to the last acknowledgement."""
    stream = world.stream()
    await asyncio.to_thread(world.fill, stream, count)
    client = redis.asyncio.Redis.from_url(world.redis_url)
    processor = Processor(client, [stream], concurrency=concurrency)
    done, began, ended = 0, 0.0, asyncio.Event()
    loop = asyncio.get_running_loop()

    def handled(number: int) -> None:
        nonlocal done, began
        began = began or time.perf_counter()
        done += number
        if done >= count:
            loop.call_soon_threadsafe(ended.set)

    opened = prepare(world, processor, handled)
    try:
        started = time.perf_counter()
        async with processor:
            await asyncio.wait_for(ended.wait(), 170)
            await processor.wait_for_active_tasks()
            took_s = time.perf_counter() - max(started, began)
    finally:
        await client.aclose()
        if opened is not None:
            await opened.dispose()
    found = await asyncio.to_thread(world.effects, stream)
    assert found == (count, count), f"{found} effects of {count} messages"
    return count / took_s


def one_by_one(world: World, processor: Processor, handled: Callable[[int], None]) -> None:
    """Register a plain function, a transaction each."""

    def handle(ctx: Any, session: DbSession) -> None:
        session.execute(EFFECT, {"id": ctx.id, "cents": ctx.data["cents"]})
        handled(1)

    processor.handler(EVENT)(for_processor(handle, engine=world.engine))


def one_by_one_async(world: World, processor: Processor, handled: Callable[[int], None]) -> Any:
    """Register an ``async def``, a transaction each."""
    engine = create_async_engine(world.async_url(), pool_size=20)

    async def handle(ctx: JobContext, session: AsyncConnection) -> None:
        await session.execute(text(EFFECT), {"id": ctx.id, "cents": ctx.data["cents"]})
        handled(1)

    processor.handler(EVENT)(for_processor(handle, engine=engine))
    return engine


def grouped(size: int) -> Prepare:
    """Register a plain function with calls that share transactions, in savepoints."""

    def prepare(world: World, processor: Processor, handled: Callable[[int], None]) -> None:
        def handle(ctx: Any, session: DbSession) -> None:
            session.execute(EFFECT, {"id": ctx.id, "cents": ctx.data["cents"]})
            handled(1)

        processor.handler(EVENT, batch=size, within_s=0.02)(
            for_processor_shared_transaction(handle, engine=world.engine)
        )

    return prepare


def batched(size: int = SIZE, *, url: str | None = None) -> Prepare:
    """Register a plain batch function."""

    def prepare(world: World, processor: Processor, handled: Callable[[int], None]) -> None:
        effects = many(world)
        engine = world.engine if url is None else create_engine(url)

        def handle(contexts: list[Any], session: DbSession) -> None:
            session.execute(*effects(contexts))
            handled(len(contexts))

        processor.handler(EVENT, batch=size, within_s=0.02)(for_processor_batch(handle, engine=engine))

    return prepare


def batched_async(size: int = SIZE) -> Prepare:
    """Register an ``async def`` batch function."""

    def prepare(world: World, processor: Processor, handled: Callable[[int], None]) -> Any:
        engine = create_async_engine(world.async_url(), pool_size=20)
        effects = many(world)

        async def handle(contexts: list[JobContext], session: AsyncConnection) -> None:
            await session.execute(*effects(contexts))
            handled(len(contexts))

        processor.handler(EVENT, batch=size, within_s=0.02)(for_processor_batch(handle, engine=engine))
        return engine

    return prepare
