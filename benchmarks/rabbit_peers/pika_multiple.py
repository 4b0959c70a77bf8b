"""Raw pika, asyncio adapter: one multiple-ack for what arrived together."""

import asyncio
import json
import sys
import time
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

url, queue, number, prefetch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


async def main() -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    seen, began, newest, scheduled = 0, 0.0, 0, False

    def flush(channel: Any) -> None:
        nonlocal scheduled
        scheduled = False
        channel.basic_ack(newest, multiple=True)

    def received(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        nonlocal seen, began, newest, scheduled
        began = began or time.perf_counter()
        json.loads(body)
        seen += 1
        newest = method.delivery_tag
        if not scheduled:
            scheduled = True
            loop.call_soon(flush, channel)
        if seen == number:
            print("RESULT", time.perf_counter() - began, flush=True)
            loop.call_later(0.2, done.set_result, None)

    def channel_open(channel: Any) -> None:
        channel.basic_qos(prefetch_count=prefetch, callback=lambda _: channel.basic_consume(queue, received))

    AsyncioConnection(
        pika.URLParameters(url), on_open_callback=lambda made: made.channel(on_open_callback=channel_open)
    )
    await done


asyncio.run(main())
