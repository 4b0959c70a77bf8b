"""The async rooms, one call at a time: an operator's question opens a loop and connections, and closes both."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from conquiet.errors import ConfigurationError, QueueError
from conquiet.queue.client import clone_async
from conquiet.queue.faults import translate

T = TypeVar("T")

_TIMEOUT_S = 10.0


def with_redis(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``await work(client)`` with an asyncio client that repeats nothing, and return its answer.

    Raises:
        QueueError: Redis refused, or did not answer.
    """

    async def run() -> T:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        try:
            given = Redis.from_url(url, socket_connect_timeout=_TIMEOUT_S)
        except ValueError:
            raise ConfigurationError("the Redis URL cannot be read; write it as redis://host:6379/0") from None
        client = clone_async(given, socket_timeout_s=_TIMEOUT_S)
        try:
            return await work(client)
        except QueueError:
            raise
        except (RedisError, OSError) as error:
            raise translate(error, stream="", group="", command="a command") from error
        finally:
            await client.aclose()
            await given.aclose()

    return asyncio.run(run())
