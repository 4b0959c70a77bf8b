"""FastStream."""

import asyncio
import logging
import sys
import time
from typing import Any

from faststream import FastStream  # type: ignore[import-not-found]
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue  # type: ignore[import-not-found]

url, queue, number, prefetch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
broker = RabbitBroker(url, logger=None)
app = FastStream(broker, logger=None)
state = {"seen": 0, "began": 0.0}


@broker.subscriber(RabbitQueue(queue, declare=False), channel=Channel(prefetch_count=prefetch))  # type: ignore[untyped-decorator]
async def handle(_: dict[str, Any]) -> None:
    state["began"] = state["began"] or time.perf_counter()
    state["seen"] += 1
    if state["seen"] == number:
        print("RESULT", time.perf_counter() - state["began"], flush=True)
        app.exit()


logging.disable(logging.CRITICAL)
asyncio.run(app.run())
