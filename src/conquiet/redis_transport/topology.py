"""The servers of the streams, and connections to them: a single server here, a Redis Cluster in ``cluster``.

A worker needs three things: the streams that one command can read together, a connection to the current server of a
stream, and, in the thread of its heartbeat, a synchronous client of that server.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import redis
from redis.exceptions import RedisError

from conquiet.errors import ConquietError
from conquiet.redis_transport.client import SOCKET_TIMEOUT_S, AnyRedis, clone_async, clone_sync
from conquiet.redis_transport.connect_errors import address_of
from conquiet.redis_transport.routing import NodeAddress


class Topology(Protocol):
    """Finds the server of a stream."""

    may_move: bool
    """True if a stream can move to another server between two commands."""

    def split_by_node(self, streams: Sequence[str]) -> list[tuple[str, ...]]:
        """Split the streams by the commands that can read them together."""
        ...

    async def connection(self, stream: str, address: NodeAddress | None = None) -> Any:
        """Return a new connection of redis-py's, not yet open, to the server that holds the stream now.

        ``address``: to this node instead, which a redirect has named.

        Raises:
            RedisError: That server cannot be found.
            OSError: That server cannot be found.
        """
        ...

    def client(self, stream: str) -> redis.Redis:
        """Return the synchronous client of the stream's last known server; one client per server.

        For one thread. Sends nothing, unless no server is known yet.

        Raises:
            QueueError: No server is known, and none could be found.
        """
        ...

    def refresh(self) -> None:
        """Fetch the owners again, after a refusal or a lost server. Same thread; may take seconds."""
        ...

    def abort(self) -> None:
        """Make pending calls of clients from here fail. Call it until their users have ended. Any thread."""
        ...

    async def close(self) -> None:
        """Close the clients. No connection may be in use any more."""
        ...


def known_address(topology: Topology, stream: str) -> str:
    """Return the address of a stream's server, for a log line; empty if no server is known. Never raises.

    For threads that report a failure: if no node of a cluster can be reached, this call fails again, and the error
    would end the thread.
    """
    try:
        client = topology.client(stream)
    except ConquietError:
        return ""
    return address_of(getattr(client, "connection_pool", None))


class SingleServer:
    """Every stream is on the server of this client: a plain one, or the master that Sentinel names.

    Args:
        client: The caller's.
        timeout_s: Longest wait of the synchronous client for a reply.
    """

    may_move = False

    def __init__(self, client: AnyRedis, *, timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        self._asynchronous = clone_async(client)
        self._synchronous = clone_sync(client, socket_timeout_s=timeout_s)

    def split_by_node(self, streams: Sequence[str]) -> list[tuple[str, ...]]:
        """See ``Topology``."""
        return [tuple(streams)]

    async def connection(self, _stream: str, _address: NodeAddress | None = None) -> Any:
        """See ``Topology``."""
        pool: Any = self._asynchronous.connection_pool
        return pool.make_connection()

    def client(self, _stream: str) -> redis.Redis:
        """See ``Topology``."""
        return self._synchronous

    def refresh(self) -> None:
        """See ``Topology``. There is only one server."""

    def abort(self) -> None:
        """See ``Topology``."""
        abort_client(self._synchronous)

    async def close(self) -> None:
        """See ``Topology``."""
        with contextlib.suppress(RedisError, OSError):
            await self._asynchronous.aclose()
        with contextlib.suppress(RedisError, OSError):
            self._synchronous.close()


def abort_client(client: redis.Redis) -> None:
    """Close the connections of a client that another thread is using: its pending call fails immediately."""
    with contextlib.suppress(RedisError, OSError):
        client.connection_pool.disconnect(inuse_connections=True)
