"""A Redis Cluster: which node has which stream.

The keys of one command must lie in one of the 16,384 slots, so the streams of one slot are read together and
others apart. Slots move: a node fails and its replica takes over, or an operator shifts load. Whoever is told
"not here" (MOVED, ASK), or finds nobody, opens a connection anew, and this looks the owner up again.

The nodes are asked by synchronous clients, from a thread: the heartbeat, which has one, needs the same answer
while the event loop is blocked.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.exceptions import ConnectionError as NodeUnreachableError
from redis.exceptions import RedisError

from conquiet.queue.client import (
    SOCKET_TIMEOUT_S,
    Address,
    AnyCluster,
    AnyRedis,
    clone_async,
    clone_sync,
    cluster_seeds,
)
from conquiet.runtime.servers import OneServer, Servers, cut_off

_ASK_S = 2.0
_LOOK_S = 0.01
_FRESH_S = 0.2
"""So long is an answer believed that somebody has just asked for. Several connections break together."""


def owners(reply: Iterable[Any], asked: Address) -> dict[range, Address]:
    """Return who has which slots, given a reply of CLUSTER SLOTS and whom it came from. Pure.

    A node that does not know its own address says nothing in its place: it is where we have asked.
    """
    found: dict[range, Address] = {}
    for first, last, (host, port, *_), *_ in reply:
        name = host.decode() if isinstance(host, bytes) else host or ""
        found[range(first, last + 1)] = (asked[0] if name in {"", "?"} else name, port)
    return found


class Cluster:
    """The nodes of a cluster; see ``Servers``. Opens no connection before it is asked for one."""

    may_move = True

    def __init__(self, client: AnyCluster) -> None:
        seeds = cluster_seeds(client)
        self._template = seeds.template
        self._pool: Any = clone_async(seeds.template).connection_pool
        self._remap = seeds.remap
        self._addresses = list(seeds.addresses)
        self._owners: dict[range, Address] = {}
        self._clients: dict[Address, redis.Redis] = {}
        self._lock = threading.Lock()
        self._asked_at = -_FRESH_S
        self._doubted = True
        self._asking: redis.Redis | None = None
        self._ended = False
        # Not asyncio's own threads: what handlers do there may take all of them, for any time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="conquiet-cluster")

    def together(self, streams: Sequence[str]) -> list[tuple[str, ...]]:
        """See ``Servers``: by slot."""
        by_slot: dict[int, list[str]] = {}
        for stream in streams:
            by_slot.setdefault(key_slot(stream.encode()), []).append(stream)
        return [tuple(those) for those in by_slot.values()]

    async def connection(self, stream: str) -> Any:
        """See ``Servers``. Asks the cluster, unless that has just been done."""
        self.doubt()
        host, port = await asyncio.get_running_loop().run_in_executor(self._thread, self._owner, stream)
        return self._pool.connection_class(**self._pool.connection_kwargs | {"host": host, "port": port})

    def client(self, stream: str) -> redis.Redis:
        """See ``Servers``. Asks the cluster only when in doubt."""
        owner = self._owner(stream)
        with self._lock:
            client = self._clients.get(owner)
            if client is None:
                client = self._clients[owner] = self._clone(owner)
            return client

    def doubt(self) -> None:
        """See ``Servers``."""
        self._doubted = True

    def cut(self) -> None:
        """See ``Servers``. The lock is not asked for: whoever has it may be the one who waits."""
        self._ended = True
        for client in (self._asking, *list(self._clients.values())):
            if client is not None:
                cut_off(client)

    async def close(self) -> None:
        """See ``Servers``."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.cut()
        while not self._lock.acquire(blocking=False):  # somebody is still asking, for an opening that was broken off
            await asyncio.sleep(_LOOK_S)
            self.cut()
        try:
            for client in self._clients.values():
                with contextlib.suppress(RedisError, OSError):
                    client.close()
            self._clients.clear()
        finally:
            self._lock.release()

    def _owner(self, stream: str) -> Address:
        with self._lock:
            if self._doubted and time.monotonic() - self._asked_at >= _FRESH_S:
                self._ask()
            slot = key_slot(stream.encode())
            for slots, address in self._owners.items():
                if slot in slots:
                    return address
        raise NodeUnreachableError("no node of the cluster has the slot of the stream")

    def _ask(self) -> None:
        """Ask the nodes in turn who has what; the first that answers is believed, until the next doubt."""
        failure: RedisError | OSError = NodeUnreachableError("no node of the cluster is known")
        for address in list(self._addresses):
            if self._ended:
                raise NodeUnreachableError("the engine has ended")
            # Another one first next time: somebody who was cut off would repeat himself.
            self._addresses.append(self._addresses.pop(0))
            client = self._asking = self._clone(address, timeout_s=_ASK_S)
            try:
                reply: Any = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            except (RedisError, OSError) as error:
                failure = error
                continue
            finally:
                self._asking = None
                client.close()
            found = {slots: self._remap(owner) for slots, owner in owners(reply, address).items()}
            if found:
                self._owners = found
                self._addresses = list(dict.fromkeys([*self._addresses, *found.values()]))
                self._asked_at = time.monotonic()
                self._doubted = False
                return
        raise failure

    def _clone(self, address: Address, *, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
        client = clone_sync(self._template, socket_timeout_s=timeout_s)
        changed = {"host": address[0], "port": address[1], "socket_connect_timeout": timeout_s}
        client.connection_pool.connection_kwargs |= changed
        return client


def servers_of(client: AnyRedis | AnyCluster) -> Servers:
    """Return where the streams of this client live."""
    return Cluster(client) if isinstance(client, RedisCluster | AsyncRedisCluster) else OneServer(client)
