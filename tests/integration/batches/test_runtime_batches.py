"""Batch handlers of ``runtime.Consumer``."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio
from tests.integration.batches.conftest import Database

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.runtime import Consumer, MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async
from conquiet.transactional import for_runtime_batch

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as own:
        yield own


async def fill(client: redis.asyncio.Redis, stream: str, count: int) -> None:
    await client.xgroup_create(stream, "processor", "0", mkstream=True)
    for number in range(count):
        await client.xadd(stream, {"data": json.dumps({"n": number})})


async def pending(client: redis.asyncio.Redis, stream: str) -> list[bytes]:
    rows: Any = await client.xpending_range(stream, "processor", "-", "+", 1_000)
    return [row["message_id"] for row in rows]


async def all_read(client: redis.asyncio.Redis, stream: str, left: int) -> bool:
    info: Any = await client.xinfo_groups(stream)
    return info[0]["lag"] == 0 and len(await pending(client, stream)) == left


@pytest.mark.spec("CM-001.8")
async def test_a_batch_has_its_effect_once_and_the_failing_message_stays_pending(
    client: redis.asyncio.Redis, key_prefix: str, database: Database
) -> None:
    stream = f"{key_prefix}orders"
    await fill(client, stream, 30)

    def handle(messages: list[RuntimeMessage], session: DbSession) -> None:
        session.execute(
            "INSERT INTO effects (message_id, cents) VALUES (:id, :cents)",
            [{"id": message.id, "cents": message.data["n"]} for message in messages],
        )
        if any(message.data["n"] == 11 for message in messages):
            raise ValueError

    consumer = Consumer(
        streams=[stream],
        redis=client,
        handler=for_runtime_batch(handle, engine=database.engine),
        batch=30,
        within_s=5.0,
    )
    async with consumer:
        await wait_until_async(lambda: all_read(client, stream, 1), message="29 are acknowledged")

    assert database.count("effects") == 29
    assert consumer.report is not None
    assert (consumer.report.succeeded, consumer.report.failed) == (29, 1)


async def test_a_malformed_entry_is_in_no_batch(client: redis.asyncio.Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    await fill(client, stream, 4)
    await client.xadd(stream, {"data": "no json"})
    lists: list[list[int]] = []
    malformed: list[str] = []

    async def handle(messages: list[RuntimeMessage], contexts: list[MessageContext]) -> None:
        assert [context.id for context in contexts] == [message.id for message in messages]
        lists.append([message.data["n"] for message in messages])

    async def on_malformed(message: RuntimeMessage, ctx: MessageContext) -> None:
        malformed.append(message.id)
        await ctx.ack()

    consumer = Consumer(
        streams=[stream], redis=client, handler=handle, batch=4, within_s=5.0, on_malformed=on_malformed
    )
    async with consumer:
        await wait_until_async(lambda: all_read(client, stream, 0), message="all are acknowledged")

    assert lists == [[0, 1, 2, 3]]
    assert len(malformed) == 1


async def test_a_handler_for_single_messages_is_refused_with_a_batch(client: redis.asyncio.Redis) -> None:
    async def handle(message: RuntimeMessage) -> None: ...

    with pytest.raises(ConfigurationError, match=r"handler\(messages, contexts\)"):
        Consumer(streams=["orders"], redis=client, handler=handle, batch=10)  # type: ignore[arg-type]
