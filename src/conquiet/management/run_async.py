"""Call the asyncio packages from synchronous code: each call opens an event loop and connections, and closes both."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from conquiet.redis_transport.client import AsyncClient, clone_async
from conquiet.redis_transport.errors import translate_errors
from conquiet.redis_transport.redis_url import client_from_url

T = TypeVar("T")

_TIMEOUT_S = 10.0


def with_redis(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``await work(client)`` with an asyncio client without retries, and return its result.

    Raises:
        ConfigurationError: The URL cannot be used.
        QueueError: Redis refused, or did not answer.
    """

    async def run() -> T:
        given = client_from_url(AsyncClient.from_url, url, socket_connect_timeout=_TIMEOUT_S)
        client = clone_async(given, socket_timeout_s=_TIMEOUT_S)
        try:
            with translate_errors("a command"):
                return await work(client)
        finally:
            await client.aclose()
            await given.aclose()

    return asyncio.run(run())
