"""``QueueConsumer.run_batches``: many messages, one transaction, one acknowledgement."""

import json
from collections.abc import Iterator

import pytest
import redis
from tests.integration.batches.conftest import Database, MakeDatabase

from conquiet.config import QueueConfig
from conquiet.db.session import DbSession
from conquiet.errors import LeaseLostError, MalformedMessageError
from conquiet.queue import QueueConsumer, QueueMessage
from conquiet.transactional import Inbox

pytestmark = pytest.mark.timeout(120)

INSERT = "INSERT INTO effects (message_id, cents) VALUES (:id, :cents)"


@pytest.fixture
def consumer(redis_url: str, key_prefix: str) -> Iterator[QueueConsumer]:
    client = redis.Redis.from_url(redis_url)
    with QueueConsumer(client, QueueConfig(f"{key_prefix}orders", "billing", "one", block_ms=200)) as consumer:
        yield consumer
    client.close()


def rows(msgs: list[QueueMessage]) -> list[dict[str, object]]:
    return [{"id": msg.payload["n"], "cents": 1} for msg in msgs]


def stopping(consumer: QueueConsumer, msgs: list[QueueMessage]) -> None:
    if any(msg.payload["n"] == "last" for msg in msgs):
        consumer.stop()


def test_a_batch_commits_once_and_is_acknowledged_without_duplicates(
    consumer: QueueConsumer, database: Database
) -> None:
    ids = consumer.queue.enqueue_many([{"n": str(number)} for number in range(10)] + [{"n": "last"}])
    inbox = Inbox()
    known = QueueMessage(consumer.config.stream_key, "billing", ids[4], {"n": "4"})
    with DbSession(database.engine) as session, inbox.once(session, known):
        pass
    sizes: list[int] = []

    def handle(msgs: list[QueueMessage], session: DbSession) -> None:
        sizes.append(len(msgs))
        session.execute(INSERT, rows(msgs))
        stopping(consumer, msgs)

    consumer.run_batches(handler=handle, engine=database.engine, batch=11, inbox=inbox)

    assert sizes == [10]
    assert database.effects() == sorted([*(str(n) for n in range(10) if n != 4), "last"])
    assert consumer.queue.count_own() == 0


@pytest.mark.spec("QC-001.6", "QC-001.15")
def test_the_failing_message_stays_pending_and_its_error_is_raised(consumer: QueueConsumer, database: Database) -> None:
    consumer.queue.enqueue_many([{"n": str(number)} for number in range(8)])

    def handle(msgs: list[QueueMessage], session: DbSession) -> None:
        session.execute(INSERT, rows(msgs))
        if any(msg.payload["n"] == "5" for msg in msgs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consumer.run_batches(handler=handle, engine=database.engine, batch=8, inbox=Inbox())

    assert database.effects() == [str(n) for n in range(8) if n != 5]
    assert [msg.payload["n"] for msg in consumer.recover_own()] == ["5"]


def test_a_message_claimed_by_another_consumer_is_taken_out_before_commit(
    consumer: QueueConsumer, make_database: MakeDatabase, redis_url: str
) -> None:
    database = make_database("mysql")
    ids = consumer.queue.enqueue_many([{"n": "0"}, {"n": "1"}, {"n": "last"}])
    calls: list[int] = []

    def handle(msgs: list[QueueMessage], session: DbSession) -> None:
        calls.append(len(msgs))
        session.execute(INSERT, rows(msgs))
        with redis.Redis.from_url(redis_url) as thief:
            thief.xclaim(consumer.config.stream_key, "billing", "thief", 0, [ids[1]])
        stopping(consumer, msgs)

    consumer.run_batches(handler=handle, engine=database.engine, batch=3, inbox=Inbox())

    assert calls == [3, 2]
    assert database.effects() == ["0", "last"]
    assert database.count("conquiet_inbox") == 2


@pytest.mark.spec("QC-001.6", "QC-004.3")
@pytest.mark.parametrize("error", [ZeroDivisionError, LeaseLostError])
def test_a_failure_behind_a_message_that_was_claimed_elsewhere_is_raised(
    consumer: QueueConsumer, make_database: MakeDatabase, redis_url: str, error: type[Exception]
) -> None:
    """Removing the first is not a failure. The error of the second was raised by the handler, with any class."""
    database = make_database("sqlite")
    ids = consumer.queue.enqueue_many([{"n": "0"}, {"n": "1"}, {"n": "2"}])
    raised = error("no")

    def handle(msgs: list[QueueMessage], session: DbSession) -> None:
        session.execute(INSERT, rows(msgs))
        with redis.Redis.from_url(redis_url) as thief:
            thief.xclaim(consumer.config.stream_key, "billing", "thief", 0, [ids[0]])
        if ids[0] not in {msg.id for msg in msgs}:
            consumer.stop()  # a run that does not raise ends too, and is seen
            if ids[1] in {msg.id for msg in msgs}:
                raise raised

    with pytest.raises(error) as caught:
        consumer.run_batches(handler=handle, engine=database.engine, batch=3)

    assert caught.value is raised
    assert database.effects() == ["2"]
    assert [msg.id for msg in consumer.recover_own()] == [ids[1]]


def test_good_messages_are_handled_before_a_malformed_one_is_raised(
    consumer: QueueConsumer, make_database: MakeDatabase, redis_url: str
) -> None:
    database = make_database("sqlite")
    with redis.Redis.from_url(redis_url) as client:
        for data in (json.dumps({"n": "0"}), "no json", json.dumps({"n": "1"})):
            client.xadd(consumer.config.stream_key, {"data": data})

    def handle(msgs: list[QueueMessage], session: DbSession) -> None:
        session.execute(INSERT, rows(msgs))

    with pytest.raises(MalformedMessageError):
        consumer.run_batches(handler=handle, engine=database.engine, batch=3, inbox=Inbox())

    assert database.effects() == ["0", "1"]
    assert consumer.queue.count_own() == 1
