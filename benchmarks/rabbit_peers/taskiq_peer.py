"""taskiq with taskiq-aio-pika: its receiver in this process."""

import asyncio
import logging
import os
import sys
import time
from typing import Any

from taskiq.api import run_receiver_task  # type: ignore[import-not-found]
from taskiq_aio_pika import AioPikaBroker, Queue  # type: ignore[import-not-found]

url, queue, number, prefetch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
logging.disable(logging.CRITICAL)
state = {"seen": 0, "began": 0.0}
broker = AioPikaBroker(url, qos=prefetch, task_queues=[Queue(name=queue, declare=False)])


@broker.task(task_name="bench")  # type: ignore[untyped-decorator]
async def bench(_: dict[str, Any]) -> None:
    state["began"] = state["began"] or time.perf_counter()
    state["seen"] += 1
    if state["seen"] == number:
        print("RESULT", time.perf_counter() - state["began"], flush=True)
        os._exit(0)


async def main() -> None:
    broker.is_worker_process = True
    await broker.startup()
    await run_receiver_task(broker, max_async_tasks=prefetch, max_prefetch=prefetch)


asyncio.run(main())
