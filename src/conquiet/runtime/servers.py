"""Where the streams live, and how to get there: one server here, a Redis Cluster in ``cluster``.

An engine asks three things: which streams one command can read together, for a connection to where a stream
is now, and, from its heartbeat's thread, for a client to there.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import redis
from redis.exceptions import RedisError

from conquiet.queue.client import SOCKET_TIMEOUT_S, AnyRedis, clone_async, clone_sync


class Servers(Protocol):
    """What an engine needs to know about the other side."""

    may_move: bool
    """True if a stream can have another server from one command to the next."""

    def together(self, streams: Sequence[str]) -> list[tuple[str, ...]]:
        """Part the streams so that one command can read each part."""
        ...

    async def connection(self, stream: str) -> Any:
        """Return a new connection of redis-py's, not yet open, to where the stream is now.

        Raises:
            RedisError: Nobody can tell where that is.
            OSError: The same.
        """
        ...

    def client(self, stream: str) -> redis.Redis:
        """Return the synchronous client for where the stream is, as far as is known; the same for the same place.

        For one thread. Asks nobody, unless nothing is known at all.
        """
        ...

    def look_again(self) -> None:
        """A server refused, or was not there: find out who has what now. In the same thread; may take seconds."""
        ...

    def cut(self) -> None:
        """Break off what a client from here waits for. Call it again until its user has noticed. Any thread."""
        ...

    async def close(self) -> None:
        """Close what was opened on the way. Nobody uses a connection any more."""
        ...


class OneServer:
    """Every stream is on the server of this client: a plain one, or the master that Sentinel names.

    Args:
        client: The caller's.
        timeout_s: How long the synchronous client waits for an answer.
    """

    may_move = False

    def __init__(self, client: AnyRedis, *, timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        self._asynchronous = clone_async(client)
        self._synchronous = clone_sync(client, socket_timeout_s=timeout_s)

    def together(self, streams: Sequence[str]) -> list[tuple[str, ...]]:
        """See ``Servers``."""
        return [tuple(streams)]

    async def connection(self, _stream: str) -> Any:
        """See ``Servers``."""
        pool: Any = self._asynchronous.connection_pool
        return pool.make_connection()

    def client(self, _stream: str) -> redis.Redis:
        """See ``Servers``."""
        return self._synchronous

    def look_again(self) -> None:
        """See ``Servers``. There is only this one."""

    def cut(self) -> None:
        """See ``Servers``."""
        cut_off(self._synchronous)

    async def close(self) -> None:
        """See ``Servers``."""
        with contextlib.suppress(RedisError, OSError):
            await self._asynchronous.aclose()
        with contextlib.suppress(RedisError, OSError):
            self._synchronous.close()


def cut_off(client: redis.Redis) -> None:
    """End the connections of a client that another thread is using: whatever it waits for fails at once."""
    with contextlib.suppress(RedisError, OSError):
        client.connection_pool.disconnect(inuse_connections=True)
