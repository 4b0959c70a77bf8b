"""The servers of an engine's streams, and connections to them: a single server, or the nodes of a Redis Cluster.

A worker needs three things: the streams that one command can read together, a connection to the current server of a
stream, and, in the thread of its heartbeat, a synchronous client of that server.

In a cluster the keys of one command must lie in one of the 16,384 slots, so only streams of one slot are read together.
Slots move: a node fails and its replica takes over, or an operator moves slots. After MOVED or a lost node the worker
opens a new connection, and ``Cluster`` fetches the slot's owner again (``slot_table``). ASK is followed by the
connection.

See docs/decisions/0015.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import RedisError

from conquiet.errors import ConquietError
from conquiet.redis_transport.client import (
    SOCKET_TIMEOUT_S,
    AnyRedis,
    abort_client,
    clone_async,
    clone_sync,
    cluster_seeds,
    is_cluster,
)
from conquiet.redis_transport.cluster_client import SyncClusterClient
from conquiet.redis_transport.connect_errors import address_of
from conquiet.redis_transport.errors import translate_errors
from conquiet.redis_transport.routing import NodeAddress, split_by_slot
from conquiet.redis_transport.slot_table import SlotTable

_POLL_S = 0.01


class SingleServer:
    """Finds the server of a stream. Every stream is on one: a plain server, or the master that Sentinel names.

    Args:
        client: The caller's.
        timeout_s: Longest wait of the synchronous client for a reply.

    Attributes:
        may_move: True if a stream can move to another server between two commands.
    """

    may_move = False

    def __init__(self, client: AnyRedis, *, timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        self._asynchronous = clone_async(client)
        self._synchronous = clone_sync(client, socket_timeout_s=timeout_s)

    def split_by_node(self, streams: Sequence[str]) -> list[tuple[str, ...]]:
        """Split the streams by the commands that can read them together."""
        return [tuple(streams)]

    async def connection(self, _stream: str, _address: NodeAddress | None = None) -> Any:
        """Return a new connection of redis-py's, not yet open, to the server that holds the stream now.

        The second argument: to this node instead, which a redirect has named.

        Raises:
            RedisError: That server cannot be found.
            OSError: That server cannot be found.
        """
        pool: Any = self._asynchronous.connection_pool
        return pool.make_connection()

    def client(self, _stream: str) -> redis.Redis:
        """Return the synchronous client of the stream's last known server; one client per server.

        For one thread. Sends nothing, unless no server is known yet.

        Raises:
            QueueError: No server is known, and none could be found.
        """
        return self._synchronous

    def refresh(self) -> None:
        """Fetch the owners again, after a refusal or a lost server. Same thread; may take seconds."""

    def abort(self) -> None:
        """Make pending calls of clients from here fail. Call it until their users have ended. Any thread."""
        abort_client(self._synchronous)

    def try_close(self) -> bool:
        """Close the synchronous clients. False while a call of another thread has to end first: call it again."""
        with contextlib.suppress(RedisError, OSError):
            self._synchronous.close()
        return True

    async def close(self) -> None:
        """Close all clients. No connection may be in use any more."""
        with contextlib.suppress(RedisError, OSError):
            await self._asynchronous.aclose()
        self.try_close()


class Cluster:
    """The nodes of a cluster, with the interface of ``SingleServer``. Opens no connection before the first request.

    Args:
        client: The caller's.
        timeout_s: Longest wait of the synchronous clients for a reply.
    """

    may_move = True

    def __init__(self, client: AnyRedis, *, timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._table = SlotTable(cluster_seeds(client))
        self._pool: Any = clone_async(self._table.seeds.template).connection_pool
        self._clients: dict[NodeAddress, SyncClusterClient] = {}

    def split_by_node(self, streams: Sequence[str]) -> list[tuple[str, ...]]:
        """See ``SingleServer``: by slot."""
        return [tuple(those) for those in split_by_slot(streams, in_cluster=True)]

    async def connection(self, stream: str, address: NodeAddress | None = None) -> Any:
        """See ``SingleServer``. Fetches the slot table unless it is fresh."""
        if address is None:
            await self._table.refresh_async()
            address = self._table.owner(stream)
        else:
            address = self._table.address_in(address, self._table.owner(stream))
        return self._pool.connection_class(**self._pool.connection_kwargs | {"host": address[0], "port": address[1]})

    def client(self, stream: str) -> redis.Redis:
        """See ``SingleServer``. Takes no lock: its holder may wait for a node other than the stream's."""
        with translate_errors("CLUSTER SLOTS", stream=stream):
            if not self._table.masters:
                self._table.refresh()
            owner = self._table.owner(stream)
        client = self._clients.get(owner)
        if client is None:
            # One for each node although each reaches all: calls that wait for a node do not hold up the others.
            client = SyncClusterClient(self._table.seeds, socket_timeout_s=self._timeout_s, table=self._table)
            client.connection_pool.connection_kwargs |= {"host": owner[0], "port": owner[1]}
            self._clients[owner] = client
        return client

    def refresh(self) -> None:
        """See ``SingleServer``."""
        with contextlib.suppress(RedisError, OSError):
            self._table.refresh()
        gone = self._clients.keys() - set(self._table.masters)
        for address in gone:
            self._clients.pop(address).close()

    def abort(self) -> None:
        """See ``SingleServer``."""
        self._table.abort()
        for client in list(self._clients.values()):
            client.abort()

    def try_close(self) -> bool:
        """See ``SingleServer``."""
        self._table.close()
        self.abort()
        if not self._table.try_lock():  # an aborted open() still fetches the table
            return False
        try:
            for client in self._clients.values():
                with contextlib.suppress(RedisError, OSError):
                    client.close()
            self._clients.clear()
        finally:
            self._table.unlock()
        return True

    async def close(self) -> None:
        """See ``SingleServer``."""
        while not self.try_close():  # noqa: ASYNC110 - a call in a thread ends
            await asyncio.sleep(_POLL_S)


Topology = SingleServer | Cluster


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


def topology_of(client: AnyRedis, *, timeout_s: float) -> Topology:
    """Return the topology of this client. ``timeout_s`` is how long its synchronous clients wait for a reply."""
    if is_cluster(client):
        return Cluster(client, timeout_s=timeout_s)
    return SingleServer(client, timeout_s=timeout_s)
