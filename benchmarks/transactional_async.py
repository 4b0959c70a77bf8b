"""An async handler with an inbox, compared with loops written by hand with the same driver, in one run.

    .venv/bin/python benchmarks/transactional_async.py [--quick] [--concurrency 8]
                                                       [--driver asyncmy|aiomysql|psycopg|asyncpg]

Contenders take turns in short rounds; figures are medians of rounds, and only ratios inside one run mean anything. Each
contender reads from a Redis stream, writes an inbox row and one effect in a transaction, and acknowledges after COMMIT.
Ours is compared with the loop that is written with the same kind of session.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from conquiet.runtime import Consumer, RuntimeMessage
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.postgres import PostgresServer
from conquiet.testing.redis import RedisServer
from conquiet.transactional import create_tables, for_runtime

ORDER = json.dumps({"account": 1, "cents": 5, "note": "a payload of about sixty bytes"})
INBOX = text(
    "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) VALUES (:s, :g, :i, UTC_TIMESTAMP(6))"
)
INBOX_POSTGRES = text(
    "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
    "VALUES (:s, :g, :i, statement_timestamp()) ON CONFLICT DO NOTHING"
)
DRIVERS = {"asyncmy": "mysql", "aiomysql": "mysql", "psycopg": "postgresql", "asyncpg": "postgresql"}
EFFECT = text("INSERT INTO effect (cents) VALUES (:cents)")


class World:
    def __init__(self, database: Any, broker: RedisServer, driver: str, concurrency: int) -> None:
        self.url = make_url(database.url)
        self.driver = driver
        self.is_postgres = DRIVERS[driver] == "postgresql"
        self.inbox = INBOX_POSTGRES if self.is_postgres else INBOX
        self.concurrency = concurrency
        self.client = redis.asyncio.Redis.from_url(broker.url)
        self.numbers = itertools.count()
        options: dict[str, Any] = {"pool_size": concurrency, "max_overflow": 0}
        async_url = self.url.set(drivername=f"{DRIVERS[driver]}+{driver}")
        self.engine: AsyncEngine = create_async_engine(async_url, **options)
        self.lean: AsyncEngine = create_async_engine(async_url, pool_reset_on_return=None, **options)

    def key(self, stream: str, entry: bytes) -> dict[str, Any]:
        """Return the values of an inbox row, of the types of its columns."""
        if self.is_postgres:
            return {"s": stream.encode(), "g": b"g", "i": entry}
        return {"s": stream, "g": "g", "i": entry.decode()}

    async def fill(self, count: int) -> str:
        stream = f"orders-{next(self.numbers)}"
        await self.client.xgroup_create(stream, "g", "0", mkstream=True)
        async with self.client.pipeline() as pipe:
            for _ in range(count):
                pipe.xadd(stream, {"data": ORDER})
            await pipe.execute()
        return stream

    async def close(self) -> None:
        await self.engine.dispose()
        await self.lean.dispose()
        await self.client.aclose()


async def by_hand(world: World, count: int, write: Callable[[str, bytes, int], Awaitable[None]]) -> float:
    """A careful hand-written loop: a task per place, one message at a time, acknowledge after COMMIT."""
    stream = await world.fill(count)
    started = time.perf_counter()

    async def place(name: str) -> None:
        while True:
            reply: Any = await world.client.xreadgroup("g", name, {stream: ">"}, count=1)
            if not reply:
                return
            ((_, ((entry, fields),)),) = reply
            await write(stream, entry, json.loads(fields[b"data"])["cents"])
            await world.client.xack(stream, "g", entry)

    await asyncio.gather(*(place(f"c{number}") for number in range(world.concurrency)))
    return count / (time.perf_counter() - started)


async def hand_written(world: World, count: int, engine: AsyncEngine) -> float:
    async def write(stream: str, entry: bytes, cents: int) -> None:
        async with engine.begin() as connection:
            await connection.execute(world.inbox, world.key(stream, entry))
            await connection.execute(EFFECT, {"cents": cents})

    return await by_hand(world, count, write)


async def hand_written_orm(world: World, count: int) -> float:
    sessions = async_sessionmaker(world.engine)

    async def write(stream: str, entry: bytes, cents: int) -> None:
        async with sessions() as session, session.begin():
            await session.execute(world.inbox, world.key(stream, entry))
            await session.execute(EFFECT, {"cents": cents})

    return await by_hand(world, count, write)


async def hand_written_raw(world: World, count: int) -> float:
    """The driver alone, one connection for each task."""
    if world.driver == "asyncmy":
        from asyncmy import connect  # type: ignore[import-untyped,unused-ignore]
    else:
        from aiomysql import connect  # type: ignore[import-untyped,no-redef,unused-ignore]
    url = world.url
    free: asyncio.Queue[Any] = asyncio.Queue()
    for _ in range(world.concurrency):
        free.put_nowait(await connect(host=url.host, port=url.port, user=url.username, db=url.database))

    async def write(stream: str, entry: bytes, cents: int) -> None:
        connection = await free.get()
        async with connection.cursor() as cursor:
            await cursor.execute(
                "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
                "VALUES (%s, %s, %s, UTC_TIMESTAMP(6))",
                (stream, "g", entry.decode()),
            )
            await cursor.execute("INSERT INTO effect (cents) VALUES (%s)", (cents,))
        await connection.commit()
        free.put_nowait(connection)

    rate = await by_hand(world, count, write)
    while not free.empty():
        connection = free.get_nowait()
        await connection.ensure_closed()
    return rate


async def with_inbox(world: World, count: int, source: Any) -> float:
    stream = await world.fill(count)
    done = asyncio.Event()
    left = itertools.count(1)

    async def handle(message: RuntimeMessage, session: AsyncConnection | AsyncSession) -> None:
        await session.execute(EFFECT, {"cents": message.data["cents"]})
        if next(left) == count:
            done.set()

    started = time.perf_counter()
    handler = for_runtime(handle, engine=source)
    async with Consumer(
        streams=[stream], redis=world.client, handler=handler, group="g", concurrency=world.concurrency
    ):
        await done.wait()
    return count / (time.perf_counter() - started)


async def race(world: World, count: int, rounds: int) -> None:
    contenders: dict[str, Callable[[], Awaitable[float]]] = {
        "by hand, SQLAlchemy engine.begin()": lambda: hand_written(world, count, world.engine),
        "by hand, SQLAlchemy, no reset on return": lambda: hand_written(world, count, world.lean),
        "by hand, SQLAlchemy AsyncSession": lambda: hand_written_orm(world, count),
        **({} if world.is_postgres else {"by hand, the driver alone": lambda: hand_written_raw(world, count)}),
        "for_runtime, AsyncEngine": lambda: with_inbox(world, count, world.engine),
        "for_runtime, AsyncEngine, no reset on return": lambda: with_inbox(world, count, world.lean),
        "for_runtime, async_sessionmaker": lambda: with_inbox(world, count, async_sessionmaker(world.engine)),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            rates[name].append(await contender())
    like = {
        "for_runtime, AsyncEngine": "by hand, SQLAlchemy engine.begin()",
        "for_runtime, AsyncEngine, no reset on return": "by hand, SQLAlchemy, no reset on return",
        "for_runtime, async_sessionmaker": "by hand, SQLAlchemy AsyncSession",
    }
    print(f"\nasync handlers, {world.driver}, {world.concurrency} at once, one INSERT and an inbox row each")
    for name, found in rates.items():
        against = like.get(name)
        ratios = [] if against is None else [a / b for a, b in zip(found, rates[against], strict=True)]
        beside = f"   {statistics.median(ratios):5.2f} of {against}" if ratios else ""
        print(f"  {name:<46} {statistics.median(found):>7,.0f}/s{beside}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--driver", choices=list(DRIVERS), default="asyncmy")
    parser.add_argument("--concurrency", type=int, default=8)
    asked = parser.parse_args()
    count, rounds = (400, 3) if asked.quick else (1_500, 7)
    server = PostgresServer if DRIVERS[asked.driver] == "postgresql" else MySQLServer
    with server() as database, RedisServer() as broker:
        plain = create_engine(database.url)
        create_tables(plain)
        with plain.begin() as connection:
            counted = "SERIAL" if DRIVERS[asked.driver] == "postgresql" else "BIGINT AUTO_INCREMENT"
            connection.execute(text(f"CREATE TABLE effect (id {counted} PRIMARY KEY, cents INT)"))
        plain.dispose()

        async def run() -> None:
            world = World(database, broker, asked.driver, asked.concurrency)
            await race(world, count, rounds)
            await world.close()

        asyncio.run(run())


if __name__ == "__main__":
    main()
