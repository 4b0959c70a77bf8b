"""conquiet, a plain function in threads."""

import asyncio
import logging
import sys
import time

from conquiet.rabbit import RabbitConsumer

url, queue, number, prefetch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
logging.disable(logging.CRITICAL)
times: list[float] = []


def syncer(_: object) -> bool:
    times.append(time.perf_counter())
    if len(times) == number:
        print("RESULT", times[-1] - times[0], flush=True)
        consumer.stop()
    return True


consumer = RabbitConsumer(url, queue, syncer, concurrency=max(1, prefetch // 2), prefetch=prefetch)
asyncio.run(consumer.run())
