"""Redis Cluster: the topology of an engine's streams.

The keys of one command must lie in one of the 16,384 slots, so only streams of one slot are read together. Slots move:
a node fails and its replica takes over, or an operator moves slots. After MOVED or a lost node the worker opens a new
connection, and ``Cluster`` fetches the slot's owner again (``slot_table``). ASK is followed by the connection.

See docs/decisions/0015.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import RedisError

from conquiet.redis_transport.client import (
    SOCKET_TIMEOUT_S,
    AnyRedis,
    clone_async,
    cluster_seeds,
    is_cluster,
)
from conquiet.redis_transport.errors import translate_errors
from conquiet.redis_transport.routing import NodeAddress, split_by_slot
from conquiet.redis_transport.slot_table import SlotTable
from conquiet.redis_transport.sync_cluster_client import SyncClusterClient
from conquiet.redis_transport.topology import SingleServer, Topology

_POLL_S = 0.01


class Cluster:
    """The nodes of a cluster; see ``Topology``. Opens no connection before the first request.

    Args:
        client: The caller's.
        timeout_s: Longest wait of the synchronous clients for a reply.
    """

    may_move = True

    def __init__(self, client: AnyRedis, *, timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        seeds = cluster_seeds(client)
        self._timeout_s = timeout_s
        self._pool: Any = clone_async(seeds.template).connection_pool
        self._seeds = seeds
        self._table = SlotTable(seeds)
        self._clients: dict[NodeAddress, SyncClusterClient] = {}

    def split_by_node(self, streams: Sequence[str]) -> list[tuple[str, ...]]:
        """See ``Topology``: by slot."""
        return [tuple(those) for those in split_by_slot(streams, in_cluster=True)]

    async def connection(self, stream: str, address: NodeAddress | None = None) -> Any:
        """See ``Topology``. Fetches the slot table unless it is fresh."""
        if address is None:
            await self._table.refresh_async()
            address = self._table.owner(stream)
        else:
            address = self._table.address_in(address, self._table.owner(stream))
        return self._pool.connection_class(**self._pool.connection_kwargs | {"host": address[0], "port": address[1]})

    def client(self, stream: str) -> redis.Redis:
        """See ``Topology``. Takes no lock: its holder may wait for a node other than the stream's."""
        with translate_errors("CLUSTER SLOTS", stream=stream):
            if not self._table.masters:
                self._table.refresh()
            owner = self._table.owner(stream)
        client = self._clients.get(owner)
        if client is None:
            # One for each node although each reaches all: calls that wait for a node do not hold up the others.
            client = SyncClusterClient(self._seeds, socket_timeout_s=self._timeout_s, table=self._table)
            client.connection_pool.connection_kwargs |= {"host": owner[0], "port": owner[1]}
            self._clients[owner] = client
        return client

    def refresh(self) -> None:
        """See ``Topology``."""
        with contextlib.suppress(RedisError, OSError):
            self._table.refresh()
        gone = self._clients.keys() - set(self._table.masters)
        for address in gone:
            self._clients.pop(address).close()

    def abort(self) -> None:
        """See ``Topology``."""
        self._table.abort()
        for client in list(self._clients.values()):
            client.abort()

    async def close(self) -> None:
        """See ``Topology``."""
        self._table.close()
        self.abort()
        while not self._table.try_lock():  # an aborted open() still fetches the table
            await asyncio.sleep(_POLL_S)
            self.abort()
        try:
            for client in self._clients.values():
                with contextlib.suppress(RedisError, OSError):
                    client.close()
            self._clients.clear()
        finally:
            self._table.unlock()


def topology_of(client: AnyRedis, *, timeout_s: float) -> Topology:
    """Return the topology of this client. ``timeout_s`` is how long its synchronous clients wait for a reply."""
    if is_cluster(client):
        return Cluster(client, timeout_s=timeout_s)
    return SingleServer(client, timeout_s=timeout_s)
