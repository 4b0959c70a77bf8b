"""One message that fails among 200: how many transactions it costs."""

import asyncio
from typing import Any

import redis.asyncio
from sqlalchemy import event

from conquiet.db.session import DbSession
from conquiet.processor import DeadLetters, Processor
from conquiet.testing import wait_until_async
from conquiet.transactional import for_processor_batch
from exactly_once_parts.common import EVENT, SIZE, World
from exactly_once_parts.ours import many


async def transactions_for_poison(world: World) -> tuple[int, int, str]:
    """Return effects, transactions on the database and the error in the dead letter."""
    stream = world.stream()
    await asyncio.to_thread(world.fill, stream, SIZE)
    client = redis.asyncio.Redis.from_url(world.redis_url)
    processor = Processor(client, [stream])
    effects, begun = many(world), [0]

    def count(_connection: Any) -> None:
        begun[0] += 1

    def handle(contexts: list[Any], session: DbSession) -> None:
        session.execute(*effects(contexts))
        if any(ctx.id == f"{stream}-137" for ctx in contexts):
            raise ArithmeticError

    processor.handler(EVENT, batch=SIZE, within_s=2.0)(for_processor_batch(handle, engine=world.engine))
    event.listen(world.engine, "begin", count)
    async with processor:
        await wait_until_async(lambda: not world.left(stream), timeout_s=60.0, message="all are settled")
    event.remove(world.engine, "begin", count)
    (letter,) = (await DeadLetters(client, stream).list()).items
    await client.aclose()
    return world.effects(stream)[0], begun[0], letter.record.error_type
