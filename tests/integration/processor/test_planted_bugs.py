"""Wake-ups of the promoter, and what a message forgets once its handler is found."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.processor import JobContext, NewMessage, Processor, RateLimit
from conquiet.processor.keys import Keys
from conquiet.testing import wait_until_async


async def test_a_debounced_message_that_is_first_to_be_due_wakes_the_promoters(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor()

    async def last_wake_up() -> Any:
        return await client.xrevrange(keys.wake, count=1)

    await processor.emit("pay", delay_s=600)
    first = await last_wake_up()
    await processor.emit("pay", delay_s=300, debounce="a")
    second = await last_wake_up()
    await processor.emit("pay", delay_s=900, debounce="b")

    assert first != second
    assert await last_wake_up() == second  # it waits behind others: no promoter has to know


async def test_a_reserved_start_wakes_a_promoter_that_sleeps_longer(
    make_processor: Callable[..., Processor],
) -> None:
    processor = make_processor(refresh_s=600)
    starts: list[float] = []

    @processor.handler("pay", rate=RateLimit(2, per_s=1.0))
    async def pay(ctx: JobContext) -> None:
        starts.append(time.monotonic())

    async with processor:
        emitted = time.monotonic()  # the first turn is not before this; its handler may start late on a busy machine
        await processor.emit("pay")
        await processor.emit("pay")
        await wait_until_async(lambda: len(starts) == 2)

    assert starts[1] - emitted >= 0.4


async def test_more_failures_at_once_than_a_chunk_holds_are_all_settled(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor(chunk_size=2)
    together = asyncio.Barrier(7)

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        await together.wait()
        raise LookupError

    async def all_dead() -> bool:
        return bool(await place.dead() == 7)

    async with processor:
        await processor.emit_many([NewMessage("pay", {"n": number}) for number in range(7)])
        await wait_until_async(all_dead)

    assert await place.pending() == 0
