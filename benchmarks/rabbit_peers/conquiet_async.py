"""conquiet, a coroutine for each message."""

import asyncio
import logging
import sys
import time

from conquiet.rabbit import RabbitConsumer

url, queue, number, prefetch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
logging.disable(logging.CRITICAL)


async def main() -> None:
    seen, began = 0, 0.0

    async def syncer(_: object) -> bool:
        nonlocal seen, began
        if seen == 0:
            began = time.perf_counter()
        seen += 1
        if seen == number:
            print("RESULT", time.perf_counter() - began, flush=True)
            consumer.stop()
        return True

    consumer = RabbitConsumer(url, queue, syncer, concurrency=max(1, prefetch // 2), prefetch=prefetch)
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main())
