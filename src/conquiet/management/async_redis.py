"""One asyncio client for a process that asks often, such as the dashboard; each command is sent once, and timed."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from conquiet.redis_transport.client import AsyncClient, clone_async
from conquiet.redis_transport.errors import translate_errors
from conquiet.redis_transport.redis_url import client_from_url

T = TypeVar("T")


class AsyncRedisAdmin:
    """Runs work on one Redis, in the event loop that made it.

    Args:
        url: The server. Nothing is sent before the first work.
        timeout_s: How long a reply may take.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        self._given = client_from_url(AsyncClient.from_url, url, socket_connect_timeout=min(timeout_s, 5.0))
        self._client = clone_async(self._given, socket_timeout_s=timeout_s)

    async def run(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Return ``await work(client)``.

        Raises:
            QueueError: Redis refused, or did not answer.
        """
        with translate_errors("a command"):
            return await work(self._client)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        await self._given.aclose()
