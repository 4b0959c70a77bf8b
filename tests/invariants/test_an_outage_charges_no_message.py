"""The database goes away, again and again and for longer than the cap would bear: no message is stuck, dead or lost.

Before this was so, a message was charged for each attempt during an outage: after 20 deliveries it was stuck under the
runtime, and after five attempts it was a dead letter of the processor. ``CONQUIET_TORTURE=1`` makes it 2,000 messages
and eight outages.
"""

import asyncio
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

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.processor import Processor, RetryPolicy, SyncJobContext
from conquiet.runtime import Consumer, RuntimeMessage, RuntimeSettings, SyncMessageContext
from conquiet.testing import wait_until_async
from conquiet.testing.mysql import MySQLServer
from conquiet.transactional import create_tables, for_processor, for_runtime

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
MESSAGES, OUTAGES = (2_000, 8) if TORTURE else (150, 2)
FAULTS_EACH = 12
"""This many handlers fail in each outage before the server returns: more than any message may be delivered."""
CAP = 3
SOON = RuntimeSettings(
    claim_idle_ms=1_000, max_deliveries=CAP, outage=Backoff(base_s=0.05, cap_s=5.0, factor=1.0, jitter=0.0)
)


@pytest.fixture
def server(private_mysql: Callable[..., MySQLServer]) -> MySQLServer:
    return private_mysql()


@pytest.fixture
def engine(server: MySQLServer) -> Iterator[Engine]:
    engine = create_engine(server.create_database("storm"), pool_size=20)
    create_tables(engine)
    with DbSession(engine) as session:
        session.execute("CREATE TABLE effect (id INT AUTO_INCREMENT PRIMARY KEY, n INT) ENGINE=InnoDB")
    yield engine
    engine.dispose()


def write(session: DbSession, number: int) -> None:
    session.execute("INSERT INTO effect (n) VALUES (:n)", {"n": number})


def effects(engine: Engine) -> Counter[int]:
    with DbSession(engine) as session:
        return Counter(row["n"] for row in session.fetch_all("SELECT n FROM effect"))


async def outages(
    server: MySQLServer, engine: Any, stream: str, feed: Callable[[int], Any], history: History
) -> list[bool]:
    """Feed the messages in parts; take the server away under each part. Returns whether the engine was ready then."""
    ready: list[bool] = []
    part = MESSAGES // OUTAGES

    def failed() -> int:
        return int(engine.health().streams[stream].failed)

    for number in range(OUTAGES):
        await feed(number * part)
        before = failed()
        with history.outage("database down"):
            await asyncio.to_thread(server.kill)
            await feed(number * part + part // 2)
            await wait_until_async(lambda before=before: failed() >= before + FAULTS_EACH, timeout_s=120)  # type: ignore[misc]
            ready.append(engine.health().ready)
            await asyncio.to_thread(server.restart)
            await wait_until_async(lambda: engine.health().ready)
    history.recovery()
    return ready


def a_history(new_history: Callable[..., History], name: str, client: Any, engine: Engine) -> History:
    return new_history(
        f"outages under the {name}",
        Row(f"{'runtime.Consumer' if name == 'runtime' else 'Processor'}, inbox, DbSession", "MariaDB", "one Redis"),
        seed=0,
        promise={"effects": "once", "attempts": True, "commits": True},
        servers=[redis_facts(client), database_facts(engine)],
    )


def finish(history: History, engine: Engine, client: Any, stream: str) -> None:
    """Add what the servers hold at the end, and judge."""
    history.record("state", effects=sorted(effects(engine).elements()))
    (group,) = client.xinfo_groups(stream)
    history.record("state", left={"pending": group["pending"], "unread": group["lag"]})
    assert history.judge()["examples"] == {}


async def acknowledged(client: Any, stream: str, group: str) -> bool:
    (info,) = [row for row in client.xinfo_groups(stream) if row["name"] in {group, group.encode()}]
    return bool(info["pending"] == 0 and info["lag"] == 0)


async def test_outages_of_the_database_charge_no_message_of_the_runtime(
    server: MySQLServer,
    engine: Engine,
    redis_url: str,
    key_prefix: str,
    new_history: Callable[..., History],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, client = f"{key_prefix}orders", redis.Redis.from_url(redis_url, decode_responses=True)
    history = a_history(new_history, "runtime", client, engine)
    wire.note_commits(history.record, monkeypatch.setattr)
    wire.note_stream_acks(history.record, lambda done: [message.data["n"] for message in done], monkeypatch.setattr)
    deliveries: Counter[int] = Counter()
    exhausted: list[str] = []
    handle = for_runtime(lambda message, session: write(session, message.data["n"]), engine=engine)

    def deliver(message: RuntimeMessage, ctx: SyncMessageContext) -> None:
        deliveries[ctx.delivery_count] += 1
        history.record("deliver", id=message.data["n"], n=ctx.delivery_count)
        wire.handle(message.data["n"])
        handle(message, ctx)

    async def feed(first: int) -> None:
        for number in range(first, first + MESSAGES // OUTAGES // 2):
            history.record("enqueue", id=number)
            client.xadd(stream, {"data": json.dumps({"n": number})})

    async with redis.asyncio.Redis.from_url(redis_url) as reader:
        consumer = Consumer(
            streams=[stream],
            redis=reader,
            handler=deliver,
            concurrency=10,
            on_exhausted=lambda message, ctx: exhausted.append(message.id),
            settings=SOON,
        )
        async with consumer:
            ready = await outages(server, consumer, stream, feed, history)
            await wait_until_async(lambda: acknowledged(client, stream, "processor"), timeout_s=300)
            history.record("drained")
            failed = consumer.health().streams[stream].failed
    done = effects(engine)
    finish(history, engine, client, stream)
    client.close()

    wanted = MESSAGES // OUTAGES // 2 * 2 * OUTAGES
    assert (len(done), done.total(), exhausted) == (wanted, wanted, [])
    assert ready == [False] * OUTAGES
    assert failed >= OUTAGES * FAULTS_EACH
    assert max(deliveries) == 1
    print(f"runtime: messages {wanted}, outages {OUTAGES}, faults {failed}, stuck 0, lost 0, twice 0")  # noqa: T201


async def test_outages_of_the_database_cost_no_message_of_the_processor_an_attempt(
    server: MySQLServer,
    engine: Engine,
    redis_url: str,
    key_prefix: str,
    new_history: Callable[..., History],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, client = f"{key_prefix}jobs", redis.Redis.from_url(redis_url, decode_responses=True)
    history = a_history(new_history, "processor", client, engine)
    wire.note_commits(history.record, monkeypatch.setattr)

    def pack(done: list[Any]) -> list[Any]:
        return [message.data["data"]["n"] for message in done]

    wire.note_stream_acks(history.record, pack, monkeypatch.setattr)
    attempts: Counter[int] = Counter()
    handle = for_processor(lambda ctx, session: write(session, ctx.data["n"]), engine=engine)

    async with redis.asyncio.Redis.from_url(redis_url) as reader:
        processor = Processor(reader, [stream], concurrency=10, runtime=SOON)

        @processor.handler("pay", retry=RetryPolicy.fixed(0, max_attempts=2))
        def pay(ctx: SyncJobContext) -> None:
            attempts[ctx.attempt] += 1
            history.record("deliver", id=ctx.data["n"], n=ctx.attempt)
            wire.handle(ctx.data["n"])
            handle(ctx)

        async def feed(first: int) -> None:
            for number in range(first, first + MESSAGES // OUTAGES // 2):
                history.record("enqueue", id=number)
                await processor.emit("pay", {"n": number})

        async with processor:
            ready = await outages(server, processor, stream, feed, history)
            await wait_until_async(lambda: acknowledged(client, stream, "processor"), timeout_s=300)
            history.record("drained")
            failed = processor.health().streams[stream].failed
            dead = client.xlen(f"{{{stream}}}:dead")
    done = effects(engine)
    finish(history, engine, client, stream)
    client.close()

    wanted = MESSAGES // OUTAGES // 2 * 2 * OUTAGES
    assert (len(done), done.total(), dead) == (wanted, wanted, 0)
    assert ready == [False] * OUTAGES
    assert set(attempts) == {1}
    print(f"processor: messages {wanted}, outages {OUTAGES}, faults {failed}, dead 0, lost 0, twice 0")  # noqa: T201


async def test_a_pool_that_is_too_small_costs_time_and_no_message(
    server: MySQLServer, redis_url: str, key_prefix: str
) -> None:
    """Fifty concurrent messages over fifteen connections: a message without one in time runs again, uncharged."""
    stream, client = f"{key_prefix}orders", redis.Redis.from_url(redis_url)
    engine = create_engine(server.create_database("small"), pool_timeout=0.2)
    create_tables(engine)
    with DbSession(engine) as session:
        session.execute("CREATE TABLE effect (id INT AUTO_INCREMENT PRIMARY KEY, n INT) ENGINE=InnoDB")
    exhausted: list[str] = []

    def slow(message: Any, session: DbSession) -> None:
        session.execute("DO SLEEP(0.3)")
        write(session, message.data["n"])

    for number in range(50):
        client.xadd(stream, {"data": json.dumps({"n": number})})
    async with redis.asyncio.Redis.from_url(redis_url) as reader:
        consumer = Consumer(
            streams=[stream],
            redis=reader,
            handler=for_runtime(slow, engine=engine),
            concurrency=50,
            on_exhausted=lambda message, ctx: exhausted.append(message.id),
            settings=SOON,
        )
        async with consumer:
            await wait_until_async(lambda: acknowledged(client, stream, "processor"), timeout_s=120)
            failed = consumer.health().streams[stream].failed
    done = effects(engine)
    engine.dispose()
    client.close()

    assert failed > 0
    assert (len(done), done.total(), exhausted) == (50, 50, [])
