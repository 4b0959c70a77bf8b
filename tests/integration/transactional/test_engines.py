"""The same inbox under the other engines: runtime, processor, RabbitMQ. And the outbox's way to them."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
import redis.asyncio
from pika.adapters.blocking_connection import BlockingChannel
from sqlalchemy.engine import Engine

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.errors import (
    CommitUnknownError,
    ConfigurationError,
    FatalSyncerError,
    LeaseLostError,
    LifecycleError,
    MessageKeyError,
)
from conquiet.processor import Processor, RetryPolicy, SyncJobContext
from conquiet.rabbit import RabbitConsumer, SchemaRegistry
from conquiet.rabbit.syncer import Postpone
from conquiet.runtime import Consumer, RuntimeMessage, SyncMessageContext
from conquiet.testing import FaultProxy, wait_until, wait_until_async
from conquiet.transactional import (
    Outbox,
    OutboxRelay,
    ToProcessor,
    ToRabbit,
    for_processor,
    for_rabbit,
    for_runtime,
    outbox_id_of,
)


@pytest.fixture
def counted(engine: Engine) -> Callable[[], int]:
    with DbSession(engine) as session:
        session.execute("CREATE TABLE effect (id INT AUTO_INCREMENT PRIMARY KEY, message VARCHAR(40))")

    def count() -> int:
        with DbSession(engine) as session:
            return int(session.execute_scalar("SELECT COUNT(*) FROM effect"))

    return count


def write(session: DbSession) -> None:
    session.execute("INSERT INTO effect (message) VALUES ('x')")


class Message:
    def __init__(self, message_id: str = "1-0") -> None:
        self.stream, self.id = "s", message_id
        self.data: dict[str, Any] = {}
        self.raw = b"{}"


class Context:
    def __init__(self, *, lost: bool = False, group: str = "g") -> None:
        self.lost = lost
        self.group = group

    def check_lease(self) -> None:
        if self.lost:
            raise LeaseLostError("lost")


async def test_the_runtime_runs_a_message_once_however_often_it_is_delivered(
    engine: Engine, redis_url: str, key_prefix: str, counted: Callable[[], int]
) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    stream = f"{key_prefix}orders"
    await client.xadd(stream, {"data": "{}"})
    handle = for_runtime(lambda _, session: write(session), engine=engine, group="g")
    handled = 0

    def deliver(message: RuntimeMessage, ctx: SyncMessageContext) -> None:
        nonlocal handled
        handle(message, ctx)  # raises if the lease was lost, as on a slow machine: then it is delivered again
        handled += 1
        if handled == 1:
            raise RuntimeError("committed, and then the process dies before the ack")

    async def acknowledged() -> bool:
        return handled >= 2 and not (await client.xpending(stream, "g"))["pending"]

    async with Consumer(streams=[stream], redis=client, handler=deliver, group="g", claim_idle_ms=200, block_ms=50):
        await wait_until_async(acknowledged, message="delivered again and acknowledged")
    assert counted() == 1
    await client.aclose()


async def test_two_services_on_one_stream_have_all_their_effects(
    engine: Engine, redis_url: str, key_prefix: str, counted: Callable[[], int]
) -> None:
    """The group is a part of the inbox key. It comes from each engine, so the two cannot have written the same one."""
    client = redis.asyncio.Redis.from_url(redis_url)
    stream = f"{key_prefix}orders"
    for number in range(20):
        await client.xadd(stream, {"data": f'{{"v": 1, "event": "paid", "id": "m-{number}"}}'})
    processor = Processor(client, [stream], group="mailing")
    processor.handler("paid")(for_processor(lambda _, session: write(session), engine=engine))
    handle = for_runtime(lambda _, session: write(session), engine=engine)

    async def acknowledged() -> bool:
        # A message that met a conflict of two transactions waits in the delayed set for its next attempt. Both are read
        # in one step: between two, it could go from where we look next to where we have looked.
        async with client.pipeline(transaction=True) as pipe:
            pipe.zcard(f"{{{stream}}}:delayed")
            pipe.xinfo_groups(stream)
            waiting, groups = await pipe.execute()
        return not waiting and all(group["pending"] == group["lag"] == 0 for group in groups)

    async with Consumer(streams=[stream], redis=client, handler=handle, group="billing"), processor:
        await wait_until_async(acknowledged, message="both groups are through")
    assert counted() == 40
    await client.aclose()


def test_a_lost_lease_rolls_back_under_the_runtime(engine: Engine, counted: Callable[[], int]) -> None:
    handle: Any = for_runtime(lambda _, session: write(session), engine=engine, group="g")

    with pytest.raises(LeaseLostError):
        handle(Message(), Context(lost=True))
    assert counted() == 0

    handle(Message(), Context())
    assert counted() == 1


async def test_a_retry_of_the_processor_recognises_an_attempt_that_did_commit(
    engine: Engine, redis_url: str, key_prefix: str, counted: Callable[[], int]
) -> None:
    """A retry is a new entry in the stream. The inbox goes by the message's id, which stays."""
    client = redis.asyncio.Redis.from_url(redis_url)
    stream = f"{key_prefix}jobs"
    attempts: list[tuple[str, str]] = []
    handle = for_processor(lambda _, session: write(session), engine=engine, group="g")
    processor = Processor(client, [stream], group="g")

    @processor.handler("paid", retry=RetryPolicy(max_attempts=3, backoff=Backoff(base_s=0.01, cap_s=0.01)))
    def paid(ctx: SyncJobContext) -> None:
        attempts.append((ctx.id, ctx.delivery.id))
        handle(ctx)
        if len(attempts) == 1:
            raise RuntimeError("committed, and taken for failed")  # an infrastructure fault would make no new entry

    # From the outbox, so that the way there is part of it.
    with DbSession(engine) as session:
        outbox_id = Outbox().add(session, "jobs", {"amount": 5})
    with (
        redis.Redis.from_url(redis_url) as sync,
        ToProcessor(sync, stream, "paid") as target,
        OutboxRelay(engine, {"jobs": target}) as relay,
    ):
        await asyncio.to_thread(relay.drain)

    async with processor:
        await wait_until_async(lambda: len(attempts) == 2, message="the second attempt")
    assert {message_id for message_id, _ in attempts} == {outbox_id}
    assert len({entry for _, entry in attempts}) == 2
    assert counted() == 1
    await client.aclose()


# ------------------------------------------------------------------ RabbitMQ
@pytest.fixture
def channel(amqp_url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


async def test_a_rabbit_message_that_comes_twice_has_its_effect_once(
    engine: Engine, amqp_url: str, channel: BlockingChannel, counted: Callable[[], int]
) -> None:
    """The relay publishes the same row twice, as after a crash between publishing and deleting."""
    channel.queue_declare("ledger", durable=True)
    with ToRabbit(amqp_url, "ledger") as target:
        with DbSession(engine) as session:
            Outbox().add(session, "ledger", {"amount": 5}, key="a")
            Outbox().add(session, "ledger", {"amount": 6}, key="a")
        with OutboxRelay(engine, {"ledger": target}) as relay:
            relay._report = _fail  # type: ignore[assignment,method-assign]
            with pytest.raises(RuntimeError):
                await asyncio.to_thread(relay.relay_once)
        with OutboxRelay(engine, {"ledger": target}) as relay:
            assert (await asyncio.to_thread(relay.drain)).published == 2
    assert channel.queue_declare("ledger", passive=True).method.message_count == 4

    syncer = for_rabbit(lambda _, session: write(session), engine=engine, queue="ledger", key=outbox_id_of)
    schemas = SchemaRegistry(built_in=False).register_default()
    async with RabbitConsumer(amqp_url, "ledger", syncer, schemas=schemas) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 4, message="all four are settled")
    assert counted() == 2


def _fail(*_: object) -> None:
    raise RuntimeError("died after publishing, before the commit")


def test_messages_of_one_key_reach_a_queue_in_order(engine: Engine, amqp_url: str, channel: BlockingChannel) -> None:
    channel.queue_declare("ledger", durable=True)
    with DbSession(engine) as session:
        ids = [Outbox().add(session, "ledger", {"n": n}, key="a") for n in range(20)]

    with ToRabbit(amqp_url, "ledger") as target, OutboxRelay(engine, {"ledger": target}) as relay:
        relay.drain()

    got = [channel.basic_get("ledger", auto_ack=True)[1].message_id for _ in ids]
    assert got == ids


def test_messages_wait_in_the_outbox_for_a_missing_queue(
    engine: Engine, amqp_url: str, channel: BlockingChannel
) -> None:
    with DbSession(engine) as session:
        Outbox().add(session, "ledger", {"n": 1})
    backoff = Backoff(base_s=0.0, cap_s=0.0)
    with (
        ToRabbit(amqp_url, "ledger") as target,
        OutboxRelay(engine, {"ledger": target}, max_attempts=1, backoff=backoff) as relay,
    ):
        assert relay.relay_once().deferred == 1
        assert Outbox().backlog(engine)["ledger"].waiting == 1

        channel.queue_declare("ledger", durable=True)

        wait_until(lambda: relay.relay_once().published == 1, message="published")


def test_a_rabbit_commit_of_unknown_fate_is_raised_and_then_recognised(
    engine: Engine,
    db_url: str,
    make_engine: Callable[..., Engine],
    fault_proxy: Callable[[str], FaultProxy],
    counted: Callable[[], int],
) -> None:
    proxy = fault_proxy(db_url)
    through = make_engine(proxy.url_for(db_url))
    lose = [True]

    def handler(_: Any, session: DbSession) -> None:
        write(session)
        if lose.pop():
            proxy.drop_next_reply(after_request_matching=b"COMMIT")

    syncer = for_rabbit(handler, engine=through, queue="q", key=lambda message: str(message["id"]))

    with pytest.raises(CommitUnknownError):
        syncer({"id": 1})
    assert counted() == 1, "the server did commit"
    assert syncer({"id": 1}) is True
    assert counted() == 1


def test_a_handler_that_refuses_leaves_nothing_behind(engine: Engine, counted: Callable[[], int]) -> None:
    def refuse(_: Any, session: DbSession) -> bool:
        write(session)
        return False

    syncer = for_rabbit(refuse, engine=engine, queue="q", key=lambda message: str(message["id"]))

    assert syncer({"id": 1}) is False
    assert counted() == 0
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT COUNT(*) FROM conquiet_inbox") == 0


def test_a_message_without_an_outbox_id_is_not_guessed_at(engine: Engine) -> None:
    syncer = for_rabbit(lambda *_: None, engine=engine, queue="q", key=outbox_id_of)

    with pytest.raises(MessageKeyError):
        syncer({"id": 1})


async def test_a_rabbit_message_is_identified_by_its_message_id(
    engine: Engine, amqp_url: str, channel: BlockingChannel, counted: Callable[[], int]
) -> None:
    """Three publications, two ids; the bodies are alike, so only the property distinguishes them."""
    channel.queue_declare("ledger", durable=True)
    for message_id in ("first", "first", "second"):
        channel.basic_publish("", "ledger", b"{}", pika.BasicProperties(delivery_mode=2, message_id=message_id))

    syncer = for_rabbit(lambda _, session: write(session), engine=engine)
    schemas = SchemaRegistry(built_in=False).register_default()
    async with RabbitConsumer(amqp_url, "ledger", syncer, schemas=schemas, concurrency=3) as consumer:
        await wait_until_async(lambda: consumer.count.ack == 3, message="all three are settled")

    assert counted() == 2
    with DbSession(engine) as session:
        rows = session.fetch_all("SELECT source, message_id FROM conquiet_inbox")
    assert sorted((row["source"], row["message_id"]) for row in rows) == [(b"ledger", b"first"), (b"ledger", b"second")]


async def test_a_syncer_that_is_called_for_another_queue_stops_the_consumer(
    engine: Engine, amqp_url: str, channel: BlockingChannel, counted: Callable[[], int]
) -> None:
    """It is wrapped in a function of the user's, so the consumer cannot see it at its start."""
    channel.queue_declare("ledger", durable=True)
    channel.basic_publish("", "ledger", b"{}", pika.BasicProperties(delivery_mode=2, message_id="m"))
    syncer = for_rabbit(lambda _, session: write(session), engine=engine, queue="orders")
    schemas = SchemaRegistry(built_in=False).register_default()

    with pytest.raises(FatalSyncerError) as caught:
        await RabbitConsumer(amqp_url, "ledger", lambda message: syncer(message), schemas=schemas).run()  # noqa: PLW0108

    assert isinstance(caught.value.__cause__, ConfigurationError)
    assert counted() == 0
    wait_until(lambda: channel.queue_declare("ledger", passive=True).method.message_count == 1, message="it is back")


def test_a_run_that_meets_the_row_of_another_run_is_requeued(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine], counted: Callable[[], int]
) -> None:
    """The first run took longer than the broker's consumer_timeout. It commits; the second must not be counted."""
    impatient = make_engine(db_url, lock_wait_s=1)
    second = for_rabbit(lambda _, session: write(session), engine=impatient, queue="q", key=lambda _: "m")

    def slow(_: Any, session: DbSession) -> None:
        write(session)
        with pytest.raises(Postpone):
            second({})

    assert for_rabbit(slow, engine=engine, queue="q", key=lambda _: "m")({}) is True
    assert second({}) is True
    assert counted() == 1


async def test_a_rabbit_message_without_an_id_is_refused_and_kept(
    engine: Engine, amqp_url: str, channel: BlockingChannel, counted: Callable[[], int]
) -> None:
    channel.queue_declare("ledger", durable=True)
    channel.basic_publish("", "ledger", b"{}", pika.BasicProperties(delivery_mode=2))
    syncer = for_rabbit(lambda _, session: write(session), engine=engine, queue="ledger")
    schemas = SchemaRegistry(built_in=False).register_default()

    with pytest.raises(FatalSyncerError) as caught:
        await RabbitConsumer(amqp_url, "ledger", syncer, schemas=schemas).run()

    assert isinstance(caught.value.__cause__, MessageKeyError)
    assert "message_id" in str(caught.value.__cause__)
    assert counted() == 0
    wait_until(lambda: channel.queue_declare("ledger", passive=True).method.message_count == 1, message="it is back")


def test_without_a_consumer_there_is_no_message_id_to_be_known_by(engine: Engine) -> None:
    syncer = for_rabbit(lambda *_: None, engine=engine, queue="q")

    with pytest.raises(LifecycleError):
        syncer({"id": 1})
