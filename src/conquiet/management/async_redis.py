"""Run functions with an asyncio client of one Redis. No command is retried."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from conquiet.redis_transport.client import AsyncClient, clone_async
from conquiet.redis_transport.redis_url import client_from_url

T = TypeVar("T")


class AsyncRedisAdmin:
    """Keeps one client in the event loop that created it, for a process such as the dashboard.

    Args:
        url: The server. Nothing is sent before the first command.
        timeout_s: Longest wait for a reply.

    Attributes:
        client: The client. Its commands raise ``QueueError`` if Redis returns an error or does not reply in time.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        self._given = client_from_url(AsyncClient.from_url, url, socket_connect_timeout=min(timeout_s, 5.0))
        self.client = clone_async(self._given, socket_timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()
        await self._given.aclose()


def with_redis(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Return ``await work(client)`` for synchronous code: opens and closes an event loop and connections.

    Raises:
        ConfigurationError: The URL cannot be used.
        QueueError: Redis returned an error, or did not reply in time.
    """

    async def run() -> T:
        admin = AsyncRedisAdmin(url)
        try:
            return await work(admin.client)
        finally:
            await admin.close()

    return asyncio.run(run())
