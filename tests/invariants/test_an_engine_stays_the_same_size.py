"""A long life changes nothing: memory, file descriptors, threads and tasks stay where they were.

A million messages with ``CONQUIET_TORTURE=1``, a small number otherwise.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from conquiet.runtime import Consumer, MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
ROUNDS, PER_ROUND = (100, 10_000) if TORTURE else (12, 4_000)


def size() -> dict[str, int]:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "rss_kib": int(resident.split()[1]),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
    }


async def test_memory_files_threads_and_tasks_are_flat(
    redis_url: str, record_property: Callable[[str, object], None]
) -> None:
    raw: Any = redis.Redis.from_url(redis_url)
    client = redis.asyncio.Redis.from_url(redis_url)
    seen = failed = 0

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal seen, failed
        seen += 1
        if message.data["n"] % 50 == 0:
            await asyncio.sleep(0)
        if message.data["n"] % 500 == 1:
            await ctx.ack()
            failed += 1
            raise RuntimeError("now and then")

    def fill() -> None:
        pipe = raw.pipeline(transaction=False)
        for number in range(PER_ROUND):
            pipe.xadd("soak", {"data": json.dumps({"n": number, "text": "x" * 50})})
        pipe.execute()

    engine = Consumer(streams=["soak"], redis=client, handler=handler, concurrency=50)
    errors: list[Any] = []
    engine.on("error", lambda event: errors.append(type(event.error)))
    sizes = []
    async with engine:
        for number in range(1, ROUNDS + 1):
            await asyncio.to_thread(fill)
            await wait_until_async(lambda upto=number * PER_ROUND: seen == upto)  # type: ignore[misc]
            await engine.wait_for_active_tasks()
            await asyncio.to_thread(raw.xtrim, "soak", maxlen=0)
            sizes.append(size())
    await client.aclose()
    raw.close()

    warm, last = sizes[len(sizes) // 2], sizes[-1]
    record_property("soak", f"messages={seen} first={sizes[0]} warm={warm} last={last}")
    assert failed == ROUNDS * PER_ROUND // 500
    assert errors == [RuntimeError] * failed, "the handler's own errors, and no others"
    assert last["files"] <= warm["files"] + 1  # the heartbeat connects with its first renewal, after 5 s
    assert last["threads"] <= warm["threads"] + 1  # asyncio's own executor
    assert last["tasks"] <= warm["tasks"]
    assert last["rss_kib"] < warm["rss_kib"] + 8 * 1024
