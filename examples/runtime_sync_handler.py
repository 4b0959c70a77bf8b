"""A plain function as handler: it runs in a thread, so it may block.

Run it with ``python examples/runtime_sync_handler.py``. It uses REDIS_URL, or redis://127.0.0.1:6379/0.
"""

import asyncio
import os
import time

import redis

from conquiet.runtime import Consumer, RuntimeMessage, Succeeded, SyncMessageContext

STREAM = "example:reports"


def render(message: RuntimeMessage, ctx: SyncMessageContext) -> None:
    time.sleep(0.02)  # a library that blocks
    ctx.check_lease()
    print(f"rendered report {message.data['n']} (delivery {ctx.delivery_count})")


async def main() -> int:
    client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"))
    for number in range(8):
        client.xadd(STREAM, {"data": f'{{"n": {number}}}'})

    consumer = Consumer(streams=[STREAM], redis=client, handler=render, concurrency=4, group="example")
    all_done = asyncio.Event()

    def count(_: Succeeded) -> None:
        if consumer.health().streams[STREAM].succeeded == 8:
            all_done.set()

    consumer.on("succeeded", count)
    async with consumer:
        await all_done.wait()
    client.delete(STREAM)
    client.close()
    assert consumer.report is not None
    return consumer.report.succeeded


if __name__ == "__main__":
    asyncio.run(main())
