"""Where the streams live, and how to get there: one server here, a Redis Cluster in ``cluster``.

An engine asks three things: which streams one command can read together, for a connection to where a stream
is now, and, from its heartbeat's thread, for a client to there.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import redis
from redis.exceptions import RedisError

from conquiet.queue.client import AnyRedis, clone_async, clone_sync


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
        """Return the synchronous client for where the stream is now; the same one for the same place."""
        ...

    def doubt(self) -> None:
        """A server refused, or was not there: do not trust what was known before. Any thread."""
        ...

    def cut(self) -> None:
        """Break off what a client from here waits for. Call it again until its user has noticed. Any thread."""
        ...

    async def close(self) -> None:
        """Close what was opened on the way. Nobody uses a connection any more."""
        ...


class OneServer:
    """Every stream is on the server of this client: a plain one, or the master that Sentinel names."""

    may_move = False

    def __init__(self, client: AnyRedis) -> None:
        self._asynchronous = clone_async(client)
        self._synchronous = clone_sync(client)

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

    def doubt(self) -> None:
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
