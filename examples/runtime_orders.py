"""An engine over two streams: handlers, events, an early ack, a clean stop.

Run it with ``python examples/runtime_orders.py``. It uses REDIS_URL, or redis://127.0.0.1:6379/0.
"""

import asyncio
import os

import redis.asyncio

from conquiet.runtime import Consumer, EngineError, Failed, MessageContext, RuntimeMessage, Succeeded
from conquiet.signals import install_termination_handlers

ORDERS, MAILS = "example:orders", "example:mails"


async def handle(message: RuntimeMessage, ctx: MessageContext) -> None:
    if message.stream == MAILS:
        await ctx.ack()  # better no mail than two: from here on it is not tried again
    if message.data["n"] == 3 and ctx.delivery_count == 1:
        raise RuntimeError("fails once; it comes again after claim_idle_ms")
    await asyncio.sleep(0.001)
    ctx.check_lease()  # right before the commit: is the message still ours?


async def main() -> int:
    url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
    async with redis.asyncio.Redis.from_url(url) as client:
        for number in range(10):
            await client.xadd(ORDERS, {"data": f'{{"n": {number}}}'})
            await client.xadd(MAILS, {"data": f'{{"n": {number + 100}}}'})

        consumer = Consumer(
            streams=[ORDERS, MAILS],
            redis=client,
            handler=handle,
            concurrency=5,
            group="example",
            claim_idle_ms=3_000,
        )
        done: set[tuple[str, str]] = set()

        def succeeded(event: Succeeded) -> None:
            done.add((event.message.stream, event.message.id))  # an id is unique within its stream only
            if len(done) == 20:
                consumer.stop()

        def failed(event: Failed) -> None:
            print(f"failed: {event.message.id} after {event.duration_s:.3f} s")

        def error(event: EngineError) -> None:
            print(f"error: {event.error}")

        consumer.on("succeeded", succeeded)
        consumer.on("failed", failed)
        consumer.on("error", error)
        with install_termination_handlers(consumer.stop):
            report = await consumer.start()
        await client.delete(ORDERS, MAILS)
    print(f"succeeded {report.succeeded}, failed {report.failed}, released {report.released}")
    return report.succeeded


if __name__ == "__main__":
    asyncio.run(main())
