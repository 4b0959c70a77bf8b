"""A database with the tables of inbox and outbox, and queues on a real Redis."""

from collections.abc import Callable, Iterator

import pytest
import redis
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from conquiet.config import QueueConfig
from conquiet.queue import QueueConsumer, RedisStreamsQueue
from conquiet.transactional import ToStream, create_tables


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(url: str, *, lock_wait_s: int = 60) -> Engine:
        # Without TLS, which MySQL offers by default: the proxy has to find the word COMMIT.
        arguments = {"init_command": f"SET SESSION innodb_lock_wait_timeout={lock_wait_s}", "ssl_disabled": True}
        engine = create_engine(url, connect_args=arguments)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.dispose()


@pytest.fixture
def engine(db_url: str, make_engine: Callable[..., Engine]) -> Engine:
    engine = make_engine(db_url)
    create_tables(engine)
    return engine


@pytest.fixture
def make_consumer(redis_url: str, key_prefix: str) -> Iterator[Callable[..., QueueConsumer]]:
    made: list[QueueConsumer] = []
    client = redis.Redis.from_url(redis_url)

    def make(stream: str = "orders", name: str = "one", *, claim_idle_ms: int = 1) -> QueueConsumer:
        config = QueueConfig(f"{key_prefix}{stream}", "billing", name, block_ms=100, claim_idle_ms=claim_idle_ms)
        made.append(QueueConsumer(client, config))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()
    client.close()


@pytest.fixture
def queue(make_consumer: Callable[..., QueueConsumer]) -> RedisStreamsQueue:
    return make_consumer("ledger").queue


def to_stream(queue: RedisStreamsQueue) -> ToStream:
    """Return a target that publishes to the stream of a queue."""
    return ToStream(queue.redis, queue.config.stream_key, max_payload_bytes=queue.config.max_payload_bytes)
