"""Messages that a handler emits name its message as the cause, also in a batch and in a plain engine."""

import asyncio
import json
from typing import Any

import pytest
import redis.asyncio
from tests.integration.dashboard.conftest import OpenClient
from tests.redis_clients import RawRedis

from conquiet.core.causation import MessageRef, read_cause
from conquiet.processor import Emitter, Processor, ProcessorSettings
from conquiet.runtime import Consumer
from conquiet.testing import wait_until_async

MESSAGES = 3


def causes(raw: RawRedis, stream: str = "emails") -> dict[str, MessageRef | None]:
    """Return the cause of each message in a stream, by its id."""
    found = [json.loads(fields[b"data"]) for _, fields in raw.xrange(stream)]
    return {one["id"]: read_cause(one.get("headers")) for one in found}


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_batch_message_is_the_cause_of_what_its_context_emits(
    open_client: OpenClient,
    raw: RawRedis,
    redis_url: str,
    kind: str,
) -> None:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        processor = Processor(client, ["orders"], settings=ProcessorSettings(job_ttl_s=3_600.0))
        sizes: list[int] = []

        async def handle(contexts: list[Any]) -> None:
            sizes.append(len(contexts))
            for ctx in contexts:
                await ctx.emit("mailed", {}, id=f"mail-{ctx.id}", stream="emails")

        def handle_plainly(contexts: list[Any]) -> None:
            sizes.append(len(contexts))
            for ctx in contexts:
                ctx.emit("mailed", {}, id=f"mail-{ctx.id}", stream="emails")

        processor.handler("paid", batch=MESSAGES, within_s=60.0)(handle if kind == "async" else handle_plainly)
        for number in range(MESSAGES):
            await processor.emit("paid", {}, id=f"order-{number}")
        running = asyncio.create_task(processor.start())
        await wait_until_async(lambda: raw.hget("{orders}:job:order-2", "state") == b"succeeded")
        processor.stop()
        await running
        await processor.close()

    assert sizes == [MESSAGES]
    assert causes(raw) == {f"mail-order-{n}": MessageRef("orders", f"order-{n}") for n in range(MESSAGES)}
    page = (await open_client().get("/message?stream=orders&id=order-1")).text
    caused = page.partition('id="caused"')[2].partition("</ul>")[0]
    assert 'href="/message?stream=emails&amp;id=mail-order-1"' in caused
    assert "mail-order-0" not in page
    assert "Attempt 1</b> succeeded after" in page


async def test_messages_emitted_by_a_batch_of_several_name_no_cause(raw: RawRedis, redis_url: str) -> None:
    """The cause may be any message of the batch. With a batch of one it is known."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        processor = Processor(client, ["orders"])
        emitter = Emitter(client, "emails")

        @processor.handler("paid", batch=MESSAGES, within_s=0.2)
        async def paid(contexts: list[Any]) -> None:
            await emitter.emit("mailed", {}, id=f"of-{len(contexts)}")

        for number in range(MESSAGES):
            await processor.emit("paid", {}, id=f"order-{number}")
        running = asyncio.create_task(processor.start())
        await wait_until_async(lambda: "of-3" in causes(raw))
        await processor.emit("paid", {}, id="order-alone")
        await wait_until_async(lambda: "of-1" in causes(raw))
        processor.stop()
        await running
        await processor.close()

    assert causes(raw) == {"of-3": None, "of-1": MessageRef("orders", "order-alone")}


@pytest.mark.parametrize("kind", ["async", "plain", "batch"])
async def test_a_handler_of_a_plain_engine_names_the_entry_it_handles(raw: RawRedis, redis_url: str, kind: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        emitter = Emitter(client, "emails")
        loop = asyncio.get_running_loop()

        async def handle(message: Any, _ctx: Any) -> None:
            await emitter.emit("mailed", {}, id=f"mail-{message.id}")

        def handle_plainly(message: Any, _ctx: Any) -> None:
            asyncio.run_coroutine_threadsafe(emitter.emit("mailed", {}, id=f"mail-{message.id}"), loop).result()

        async def handle_batch(messages: list[Any], contexts: list[Any]) -> None:
            for message in messages:
                await handle(message, contexts)

        first, second = (raw.xadd("orders", {"data": "{}"}).decode() for _ in range(2))
        options: dict[str, Any] = {"batch": 1} if kind == "batch" else {}
        handler = {"async": handle, "plain": handle_plainly, "batch": handle_batch}[kind]
        async with Consumer(streams=["orders"], redis=client, handler=handler, concurrency=1, **options):
            await wait_until_async(lambda: len(causes(raw)) == 2)

    assert causes(raw) == {f"mail-{entry}": MessageRef("orders", entry) for entry in (first, second)}
