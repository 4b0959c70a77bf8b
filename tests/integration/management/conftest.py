from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis.asyncio
from redis import Redis

from conquiet.config import QueueConfig
from conquiet.management import RedisAdmin
from conquiet.queue import RedisStreamsQueue


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def server(client: Redis) -> Iterator[RedisAdmin]:
    with RedisAdmin(client) as server:
        yield server


@pytest.fixture
def stream(key_prefix: str) -> str:
    return f"{key_prefix}orders"


@pytest.fixture
async def aio(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as own:
        yield own


class NewerServer(RedisAdmin):
    """The Redis of the test, treated as a server that counts attempted reads: an idle consumer there is proved dead."""

    def info(self, *sections: str) -> dict[str, str]:
        return super().info(*sections) | {"redis_version": "7.2.0"}


@pytest.fixture
def newer(client: Redis) -> Iterator[RedisAdmin]:
    with NewerServer(client) as server:
        yield server


@pytest.fixture
def make_queue(client: Redis, key_prefix: str) -> Iterator[Callable[..., RedisStreamsQueue]]:
    """``make_queue(name, consumer)``: a queue on a stream of the test's own."""
    opened: list[RedisStreamsQueue] = []

    def make(name: str = "orders", consumer: str = "alice", group: str = "billing") -> RedisStreamsQueue:
        queue = RedisStreamsQueue(client, QueueConfig(key_prefix + name, group, consumer, max_read_count=1_000))
        opened.append(queue)
        return queue

    yield make
    for queue in opened:
        queue.close()
