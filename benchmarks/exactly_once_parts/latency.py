"""Measure the time from emission to COMMIT at a steady rate. A separate process emits."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import redis.asyncio

from conquiet.db.session import DbSession
from conquiet.processor import Processor
from conquiet.testing import wait_until_async
from conquiet.transactional import for_processor_batch
from exactly_once_parts.common import EVENT, SIZE, World
from exactly_once_parts.ours import many


async def latencies(world: World, rate: float, *, seconds: float) -> list[float]:
    """Return the latency of each message, in seconds."""
    stream = world.stream()
    client = redis.asyncio.Redis.from_url(world.redis_url)
    processor = Processor(client, [stream])
    effects = many(world)
    found: list[float] = []
    made = for_processor_batch(lambda contexts, session: _write(session, effects(contexts)), engine=world.engine)

    def handle(contexts: list[Any]) -> Any:
        outcome = made(contexts)  # committed
        now = time.time()
        found.extend(now - float(ctx.data["at"]) for ctx in contexts)
        return outcome

    processor.handler(EVENT, batch=SIZE, within_s=0.02)(handle)
    expected = int(rate * seconds)
    order = json.dumps({"redis": world.redis_url, "stream": stream, "event": EVENT, "rate": rate, "count": expected})
    async with processor:
        emitter = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("steady_emitter.py")), order
        )
        await wait_until_async(lambda: len(found) >= expected, timeout_s=60.0 + seconds, message="all are committed")
        await emitter.wait()
    await client.aclose()
    return found


def _write(session: DbSession, statement: tuple[Any, Any]) -> None:
    session.execute(*statement)
