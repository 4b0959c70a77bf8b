"""Producing needs no consumer group and creates none."""

from typing import Any

import pytest
from redis import Redis

from conquiet.config import QueueConfig
from conquiet.errors import ConfigurationError, PayloadError
from conquiet.processor import SyncEmitter
from conquiet.queue import RedisStreamsQueue, StreamProducer


@pytest.fixture
def stream(key_prefix: str) -> str:
    return f"{key_prefix}orders"


def test_a_producer_creates_no_group(redis_url: str, stream: str) -> None:
    with Redis.from_url(redis_url) as client, StreamProducer(client, stream) as producer:
        first = producer.enqueue({"n": 1})
        many = producer.enqueue_many([{"n": 2}, {"n": 3}])

        assert client.xinfo_groups(stream) == []
        assert [entry_id.decode() for entry_id, _ in client.xrange(stream)] == [first, *many]


def test_a_consumer_reads_the_entries_of_a_producer(redis_url: str, stream: str) -> None:
    with Redis.from_url(redis_url) as client, StreamProducer(client, stream) as producer:
        producer.enqueue({"n": 1})
        with RedisStreamsQueue(client, QueueConfig(stream, "billing", "alice")) as queue:
            (message,) = queue.read(10)

    assert message.payload == {"n": 1}


def test_a_producer_honours_idempotency_keys(redis_url: str, stream: str) -> None:
    with Redis.from_url(redis_url) as client, StreamProducer(client, stream) as producer:
        one = producer.enqueue({"n": 1}, idempotency_key="k")
        again = producer.enqueue({"n": 1}, idempotency_key="k")

        assert (one, client.xlen(stream)) == (again, 1)
        with pytest.raises(PayloadError, match="used before"):
            producer.enqueue({"n": 2}, idempotency_key="k")


@pytest.mark.parametrize("payload", [["no object"], {"n": float("nan")}])
def test_a_producer_refuses_what_no_consumer_could_read(redis_url: str, stream: str, payload: Any) -> None:
    with Redis.from_url(redis_url) as client, StreamProducer(client, stream) as producer:
        with pytest.raises(PayloadError):
            producer.enqueue(payload)
        assert client.exists(stream) == 0
        with pytest.raises(ConfigurationError):
            StreamProducer(client, "")


def test_emitting_to_a_processor_creates_no_group(redis_url: str, stream: str) -> None:
    with Redis.from_url(redis_url) as client, SyncEmitter(client, stream) as emitter:
        emitter.emit("order", {"n": 1})

        assert client.xinfo_groups(stream) == []
