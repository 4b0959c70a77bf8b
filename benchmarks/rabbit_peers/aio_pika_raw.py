"""Raw aio-pika, an ack for each message."""

import asyncio
import json
import sys
import time
from typing import Any

import aio_pika  # type: ignore[import-not-found]

url, queue_name, number, prefetch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


async def main() -> None:
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=prefetch)
    queue = await channel.get_queue(queue_name)
    seen, began, done = 0, 0.0, asyncio.Event()

    async def received(message: Any) -> None:
        nonlocal seen, began
        began = began or time.perf_counter()
        json.loads(message.body)
        await message.ack()
        seen += 1
        if seen == number:
            print("RESULT", time.perf_counter() - began, flush=True)
            done.set()

    await queue.consume(received)
    await done.wait()
    await connection.close()


asyncio.run(main())
