"""Repeated entry ids: after a stream was created again, or a replica with a slow clock took over.

Three lives of one stream, with the same ids in each. Every fifth acknowledgement is lost, so that redelivery happens at
the same time. In the third life every second message is one of the second life again, as from a restored backup.
``CONQUIET_TORTURE=1`` makes it 5,000 messages a life.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from tests.invariants import wire
from tests.invariants.histories import History, Row, database_facts, redis_facts

from conquiet.config import QueueConfig
from conquiet.db.session import DbSession
from conquiet.processor import Processor, ProcessorSettings, SyncJobContext
from conquiet.queue import QueueConsumer, QueueMessage
from conquiet.runtime import Consumer, RuntimeMessage, SyncMessageContext
from conquiet.testing import wait_until_async
from conquiet.transactional import Inbox, create_tables, for_processor, for_runtime

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
MESSAGES = 5_000 if TORTURE else 100
GROUP = "billing"


@pytest.fixture
def engine(db_url: str) -> Iterator[Engine]:
    engine = create_engine(db_url, pool_size=20)
    create_tables(engine)
    with DbSession(engine) as session:
        session.execute("CREATE TABLE effect (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40)) ENGINE=InnoDB")
    yield engine
    engine.dispose()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_url)
    yield client
    client.close()


@pytest.fixture
def begin_history(
    engine: Engine, client: redis.Redis, new_history: Callable[..., History], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], History]:
    def begin(who: str) -> History:
        facts = [redis_facts(client), database_facts(engine)]
        history = new_history(
            f"ids used again under {who}",
            Row(f"{who}, inbox, DbSession", facts[1]["name"], "one Redis, its stream deleted and made again twice"),
            seed=0,
            promise={"effects": "once", "commits": True},
            servers=facts,
            claim_idle_s=0.5,
        )
        for number in range(MESSAGES):
            for life in (1, 2) if number % 2 else (1, 2, 3):
                copies = 2 if life == 2 and number % 2 else 1
                history.record("enqueue", id=name_of(life, number), copies=copies)
        wire.note_commits(history.record, monkeypatch.setattr)
        wire.note_stream_acks(history.record, names_of, monkeypatch.setattr)
        return history

    return begin


def names_of(messages: list[Any]) -> list[str]:
    """Return the names of what an engine acknowledges."""
    return [message.data.get("data", message.data)["name"] for message in messages]


def name_of(life: int, number: int) -> str:
    if life == 3 and number % 2:
        life = 2  # restored from a backup
    return f"{life}:{number}"


def begin_life(client: redis.Redis, stream: str, life: int, *, envelope: bool = False) -> None:
    """Create the stream again with the ids that it had before."""
    client.delete(stream)
    client.xgroup_create(stream, GROUP, id="0", mkstream=True)
    pipeline = client.pipeline(transaction=False)
    for number in range(MESSAGES):
        data: dict[str, Any] = {"name": name_of(life, number)}
        if envelope:  # as a foreign producer writes it, without an id: it takes the entry's
            data = {"v": 1, "event": "pay", "data": data}
        pipeline.xadd(stream, {"data": json.dumps(data)}, id=f"{1_700_000_000_000 + number // 3}-{number % 3}")
    pipeline.execute()


def write(session: DbSession, name: str) -> None:
    session.execute("INSERT INTO effect (name) VALUES (:name)", {"name": name})


def check(engine: Engine, history: History) -> None:
    with DbSession(engine) as session:
        done = Counter(row["name"] for row in session.fetch_all("SELECT name FROM effect"))
    wanted = {name_of(life, number) for life in (1, 2, 3) for number in range(MESSAGES)}
    lost, twice = wanted - done.keys(), [name for name, count in done.items() if count > 1]
    assert (len(lost), len(twice), len(done)) == (0, 0, len(wanted))
    history.recovery()  # each life has drained before the next began
    history.record("drained")
    history.record("state", effects=list(done.elements()))
    assert history.judge()["examples"] == {}


def test_ids_that_come_again_lose_nothing_with_the_queue(
    engine: Engine, client: redis.Redis, key_prefix: str, begin_history: Callable[[str], History]
) -> None:
    stream, history = f"{key_prefix}orders", begin_history("QueueConsumer")

    class Forgetful(QueueConsumer):
        acks = 0

        def ack(self, msg: QueueMessage) -> None:
            self.acks += 1
            if self.acks % 5:
                history.record("ack", id=msg.payload["name"])
                super().ack(msg)
            else:
                history.record("fault", kind="acknowledgement lost", target=os.getpid())

        def next(self, block_ms: int | None = None) -> QueueMessage | None:
            found = super().next(block_ms)
            if found is None:
                self.stop()
            else:
                history.record("deliver", id=found.payload["name"])
                wire.handle(found.payload["name"])
            return found

    def handle(msg: QueueMessage, session: DbSession) -> None:
        wire.handle(msg.payload["name"])
        write(session, msg.payload["name"])

    for life in (1, 2, 3):
        begin_life(client, stream, life)
        with Forgetful(client, QueueConfig(stream, GROUP, "one", block_ms=100)) as consumer:
            consumer.run(handler=handle, engine=engine, inbox=Inbox())
        with QueueConsumer(client, QueueConfig(stream, GROUP, "two", block_ms=100)) as rescuer:
            assert rescuer.backlog().pending == MESSAGES // 5
            rescuer.sleep = lambda duration_s: rescuer.stop()  # type: ignore[method-assign]
            rescuer.run_claim_stale(handler=handle, engine=engine, min_idle_ms=1, inbox=Inbox())
            assert rescuer.backlog().pending == 0

    check(engine, history)


async def acknowledged(client: redis.Redis, stream: str) -> bool:
    (group,) = client.xinfo_groups(stream)
    return bool(group["pending"] == 0 and group["lag"] == 0)


async def test_ids_that_come_again_lose_nothing_with_the_runtime(
    engine: Engine, client: redis.Redis, redis_url: str, key_prefix: str, begin_history: Callable[[str], History]
) -> None:
    stream, history = f"{key_prefix}orders", begin_history("runtime.Consumer")
    handle = for_runtime(lambda message, session: write(session, message.data["name"]), engine=engine)
    failures = 0

    def deliver(message: RuntimeMessage, ctx: SyncMessageContext) -> None:
        nonlocal failures
        history.record("deliver", id=message.data["name"])
        wire.handle(message.data["name"])
        handle(message, ctx)
        if ctx.delivery_count == 1 and int(message.id[-3]) % 5 == 0:
            failures += 1
            history.record("retry", id=message.data["name"])
            raise RuntimeError("committed, and then the process dies before the ack")

    for life in (1, 2, 3):
        begin_life(client, stream, life)
        async with (
            redis.asyncio.Redis.from_url(redis_url) as reader,
            Consumer(streams=[stream], redis=reader, handler=deliver, group=GROUP, concurrency=8, claim_idle_ms=500),
        ):
            await wait_until_async(lambda: acknowledged(client, stream), timeout_s=300, message="all are acknowledged")

    assert failures > MESSAGES // 5
    check(engine, history)


async def test_ids_that_come_again_lose_nothing_with_the_processor(
    engine: Engine, client: redis.Redis, redis_url: str, key_prefix: str, begin_history: Callable[[str], History]
) -> None:
    """Its messages have no id, so the id of their first entry identifies them, through all attempts."""
    stream, history = f"{key_prefix}jobs", begin_history("Processor")
    handle = for_processor(lambda ctx, session: write(session, ctx.data["name"]), engine=engine)
    failures = 0

    def pay(ctx: SyncJobContext) -> None:
        nonlocal failures
        history.record("deliver", id=ctx.data["name"])
        wire.handle(ctx.data["name"])
        handle(ctx)
        if ctx.attempt == 1 and int(ctx.id[-3]) % 5 == 0:
            failures += 1
            history.record("retry", id=ctx.data["name"])
            raise RuntimeError("committed, and taken for failed")

    for life in (1, 2, 3):
        begin_life(client, stream, life, envelope=True)
        async with redis.asyncio.Redis.from_url(redis_url) as reader:
            kept = ProcessorSettings(retention=None)  # the entries of all attempts are counted below
            processor = Processor(reader, [stream], group=GROUP, concurrency=8, settings=kept)
            processor.handler("pay")(pay)
            before = failures
            async with processor:
                await wait_until_async(
                    lambda: client.xlen(stream) == MESSAGES + failures - before,  # noqa: B023 - used in this round
                    timeout_s=300,
                    message="all attempts are in the stream",
                )
                await wait_until_async(
                    lambda: acknowledged(client, stream), timeout_s=300, message="all are acknowledged"
                )

    assert failures > MESSAGES // 5
    check(engine, history)
