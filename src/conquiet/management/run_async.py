"""Call the asyncio packages from synchronous code. Each call opens and closes an event loop and connections."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from conquiet.management.async_redis import AsyncRedisAdmin

T = TypeVar("T")


def with_redis(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Return the result of ``await work(client)`` with an asyncio client without retries.

    Raises:
        ConfigurationError: The URL cannot be used.
        QueueError: Redis returned an error, or did not reply in time.
    """

    async def run() -> T:
        admin = AsyncRedisAdmin(url)
        try:
            return await admin.run(work)
        finally:
            await admin.close()

    return asyncio.run(run())
