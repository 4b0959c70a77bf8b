"""The processor, the bare engine and raw redis-py."""

# ruff: noqa: ARG001 - handlers take what they are handed

import asyncio
import json
import time
from typing import Any

from processor_parts.common import DATA, Clock, connect, say

ENVELOPE = (
    b'{"v":1,"event":"work","id":"%d","attempt":1,"emitted_ms":1763244000000,"data":{"order":12345,"amount":19.99}}'
)


# ---------------------------------------------------------------- processing a backlog
async def fill(url: str, n: int) -> None:
    client = connect(url)
    await client.xgroup_create("s", "processor", "0", mkstream=True)
    for start in range(0, n, 1_000):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + 1_000, n)):
            pipe.xadd("s", {"data": ENVELOPE % number})
        await pipe.execute()
    await client.aclose()


async def engine(url: str, n: int) -> None:
    from conquiet.runtime import Consumer

    client = connect(url)
    clock = Clock(n, lambda: None)

    async def handler(message: Any, ctx: Any) -> None:
        clock.tick()

    consumer = Consumer(streams=["s"], redis=client, handler=handler, concurrency=100)
    clock.done = consumer.stop
    await consumer.start()
    clock.report()
    await client.aclose()


async def processor(url: str, n: int, *, handler_options: dict[str, Any] | None = None, **settings: Any) -> None:
    from conquiet.processor import Processor, ProcessorSettings

    client = connect(url)
    ours = Processor(client, ["s"], concurrency=100, settings=ProcessorSettings(**settings))
    clock = Clock(n, ours.stop)

    @ours.handler("work", **(handler_options or {}))
    async def work(ctx: Any) -> None:
        clock.tick()

    await ours.start()
    clock.report()
    await ours.close()
    await client.aclose()


async def retries(url: str, n: int) -> None:
    """Every message fails once and succeeds at its second attempt: n first attempts, n retries, n second ones."""
    from conquiet.processor import Processor, RetryPolicy

    client = connect(url)
    ours = Processor(client, ["s"], concurrency=100)
    clock = Clock(2 * n, ours.stop)

    @ours.handler("work", retry=RetryPolicy.fixed(0.05, max_attempts=2))
    async def work(ctx: Any) -> None:
        clock.tick()
        if ctx.attempt == 1:
            raise ConnectionError

    await ours.start()
    clock.report(n)
    await ours.close()
    await client.aclose()


async def delayed_fill(url: str, n: int) -> None:
    from conquiet.processor import Emitter, NewMessage
    from conquiet.redis_transport.client import clone_async

    client = connect(url)
    own = clone_async(client)
    at = time.time() + 1.0 + n / 20_000
    await Emitter(own, "s").emit_many([NewMessage("work", DATA, at=at) for _ in range(n)])
    await client.xgroup_create("s", "processor", "0", mkstream=True)
    await asyncio.sleep(max(0.0, at - time.time()))
    await own.aclose()
    await client.aclose()


# ---------------------------------------------------------------- emitting
async def emit_one(url: str, n: int, **options: Any) -> None:
    from conquiet.processor import Emitter
    from conquiet.redis_transport.client import clone_async

    client = connect(url)
    own = clone_async(client)
    emitter = Emitter(own, "s")
    await emitter.emit("work", DATA)
    began = time.perf_counter()
    for number in range(n):
        await emitter.emit("work", DATA, **({"id": f"m{number}"} if "id" in options else options))
    say(rate=n / (time.perf_counter() - began))
    await own.aclose()
    await client.aclose()


async def emit_many(url: str, n: int, **options: Any) -> None:
    from conquiet.processor import Emitter
    from conquiet.redis_transport.client import clone_async

    client = connect(url)
    own = clone_async(client)
    emitter = Emitter(own, "s")
    await emitter.emit("work", DATA)
    began = time.perf_counter()
    for start in range(0, n, 5_000):
        await emitter.emit_many(_many(start, min(start + 5_000, n), options))
    say(rate=n / (time.perf_counter() - began))
    await own.aclose()
    await client.aclose()


def _many(start: int, end: int, options: dict[str, Any]) -> list[Any]:
    from conquiet.processor import NewMessage

    return [
        NewMessage("work", DATA, f"m{number}" if "id" in options else None, options.get("delay"))
        for number in range(start, end)
    ]


async def raw_pipeline(url: str, n: int) -> None:
    client = connect(url)
    await client.xadd("s", {"data": "{}"})
    began = time.perf_counter()
    for start in range(0, n, 500):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + 500, n)):
            pipe.xadd("s", {"data": _payload(number)})
        await pipe.execute()
    say(rate=n / (time.perf_counter() - began))
    await client.aclose()


async def raw_one(url: str, n: int) -> None:
    client = connect(url)
    await client.xadd("s", {"data": "{}"})
    began = time.perf_counter()
    for number in range(n):
        await client.xadd("s", {"data": _payload(number)})
    say(rate=n / (time.perf_counter() - began))
    await client.aclose()


def _payload(number: int) -> str:
    return json.dumps({"v": 1, "event": "work", "id": str(number), "attempt": 1, "emitted_ms": 1, "data": DATA})


# ---------------------------------------------------------------- delays at rest, and the cost of waiting
async def lateness(url: str, n: int) -> None:
    """Messages due at odd moments while nothing else happens: how late do their handlers start?"""
    from conquiet.processor import Processor

    client = connect(url)
    ours = Processor(client, ["s"], concurrency=10)
    late: list[float] = []

    @ours.handler("work")
    async def work(ctx: Any) -> None:
        late.append((time.time() - ctx.data["due"]) * 1000)

    async with ours:
        for number in range(n):
            delay = 0.3 + 0.037 * (number % 7)
            await ours.emit("work", {"due": time.time() + delay}, delay_s=delay)
            await asyncio.sleep(0.02)
        while len(late) < n:  # noqa: ASYNC110 - polling is good enough here
            await asyncio.sleep(0.01)
        before = await _calls(client)
        await asyncio.sleep(5)
        after = await _calls(client)
    late.sort()
    idle = {f"idle_{name}": (after[name] - before[name]) / 5 for name in after}
    say(p50=late[n // 2], p99=late[int(n * 0.99)], most=late[-1], **idle)
    await client.aclose()


async def _calls(client: Any) -> dict[str, int]:
    stats = await client.info("commandstats")
    return {
        name: int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "xread", "xreadgroup")
    }
