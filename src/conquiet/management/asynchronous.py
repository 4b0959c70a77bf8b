"""The async rooms, one call at a time: an operator's question opens a loop and connections, and closes both."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from conquiet.errors import QueueError
from conquiet.management.addresses import client_for
from conquiet.queue.client import clone_async
from conquiet.queue.faults import translate

T = TypeVar("T")

_TIMEOUT_S = 10.0


def with_redis(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``await work(client)`` with an asyncio client that repeats nothing, and return its answer.

    Raises:
        ConfigurationError: The URL cannot be used.
        QueueError: Redis refused, or did not answer.
    """

    async def run() -> T:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        given = client_for(Redis.from_url, url, socket_connect_timeout=_TIMEOUT_S)
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
