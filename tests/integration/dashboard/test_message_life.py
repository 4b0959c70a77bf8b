"""The page of a message: each attempt, its effect, and the messages it caused."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import create_engine, text
from tests.integration.dashboard.conftest import OpenClient
from tests.redis_clients import RawRedis

from conquiet.core.backoff import Backoff
from conquiet.core.causation import MessageRef, read_cause
from conquiet.db import DbSession
from conquiet.processor import JobContext, Processor, ProcessorSettings, RetryPolicy
from conquiet.testing import wait_until_async
from conquiet.transactional import Outbox, create_tables, for_processor

SECRET = "note-7f3a9c"


class CardDeclinedError(Exception):
    """A failure of the shop's."""


@pytest.fixture
async def shop(redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Processor, str]]:
    """A processor with a handler of ``paid`` that fails once, then commits an effect, an outbox row and a message."""
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = create_engine(url)
    create_tables(engine)
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        processor = Processor(client, ["orders"], settings=ProcessorSettings(job_ttl_s=3_600.0))

        def paid(ctx: Any, session: DbSession) -> None:
            if ctx.attempt == 1:
                raise CardDeclinedError(SECRET)
            Outbox().add(session, "ledger", {"note": SECRET})
            ctx.emit("mailed", {"note": SECRET}, id="mail-1")

        retry = RetryPolicy(max_attempts=3, backoff=Backoff(base_s=0.01))
        processor.handler("paid", retry=retry)(for_processor(paid, engine=engine))

        @processor.handler("mailed", retry=RetryPolicy(max_attempts=1))
        async def mailed(_ctx: JobContext) -> None:
            raise CardDeclinedError(SECRET)

        running = asyncio.create_task(processor.start())
        await wait_until_async(lambda: processor.health().ready)
        yield processor, url
        processor.stop()
        await running
        await processor.close()
    engine.dispose()


async def test_a_messages_life_has_attempts_effect_and_what_it_caused(
    open_client: OpenClient,
    shop: tuple[Processor, str],
    raw: RawRedis,
) -> None:
    processor, db_url = shop
    client = open_client(db_url=db_url)

    await processor.emit("paid", {"note": SECRET}, id="order-1")
    await wait_until_async(lambda: raw.xlen("{orders}:dead") == 1)

    async def is_over() -> bool:
        return "Attempt 2</b> succeeded" in (await client.get("/message?stream=orders&id=order-1")).text

    await wait_until_async(is_over)
    life = (await client.get("/message?stream=orders&id=order-1")).text
    failed, succeeded = life.partition('id="attempt-1"')[2].split('id="attempt-2"')
    assert "Attempt 1</b> failed after" in failed
    assert "test_message_life.CardDeclinedError" in failed
    assert "in paid" in failed
    assert "succeeded after" in succeeded
    assert "committed: the inbox has its row" in life
    caused = life.partition('id="caused"')[2].partition("</ul>")[0]
    assert 'href="/message?stream=orders&amp;id=mail-1"' in caused
    assert "to ledger" in caused
    assert SECRET not in life

    follower = (await client.get("/message?stream=orders&id=mail-1")).text
    assert "Caused by" in follower
    assert 'href="/message?stream=orders&amp;id=order-1"' in follower
    assert "Attempt 1</b> failed after" in follower
    assert SECRET not in follower


async def test_the_cause_travels_in_the_row_of_the_outbox_too(shop: tuple[Processor, str], raw: RawRedis) -> None:
    processor, db_url = shop

    await processor.emit("paid", {}, id="order-1")
    await wait_until_async(lambda: raw.hget("{orders}:job:order-1", "state") == b"succeeded")

    engine = create_engine(db_url)
    with engine.connect() as connection:
        headers = connection.execute(text("SELECT headers FROM conquiet_outbox")).scalar_one()
    engine.dispose()
    assert read_cause(json.loads(headers)) == MessageRef("orders", "order-1")
