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
    """The nodes of a cluster; see ``Servers``. Opens no connection before it is asked for one.

    Args:
        client: The caller's.
        timeout_s: How long synchronous clients wait for an answer.
    """

    may_move = True

    def __init__(self, client: AnyCluster, *, timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        seeds = cluster_seeds(client)
        self._timeout_s = timeout_s
        self._template = seeds.template
        self._pool: Any = clone_async(seeds.template).connection_pool
        self._remap = seeds.remap
        self._seeds = seeds.addresses
        self._addresses = list(seeds.addresses)
        self._owners: dict[range, Address] = {}
        self._clients: dict[Address, redis.Redis] = {}
        self._lock = threading.Lock()
        self._asked_at = -_FRESH_S
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
        await asyncio.get_running_loop().run_in_executor(self._thread, self._ask)
        host, port = self._owner(stream)
        return self._pool.connection_class(**self._pool.connection_kwargs | {"host": host, "port": port})

    def client(self, stream: str) -> redis.Redis:
        """See ``Servers``. Takes no lock: whoever has it may be waiting for a node that is not the stream's."""
        if not self._owners:
            self._ask()
        owner = self._owner(stream)
        client = self._clients.get(owner)
        if client is None:
            client = self._clients[owner] = self._clone(owner, timeout_s=self._timeout_s)
        return client

    def look_again(self) -> None:
        """See ``Servers``."""
        with contextlib.suppress(RedisError, OSError):
            self._ask()
        gone = self._clients.keys() - set(self._owners.values())
        for address in gone:
            self._clients.pop(address).close()

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
        slot = key_slot(stream.encode())
        for slots, address in self._owners.items():
            if slot in slots:
                return address
        raise NodeUnreachableError("no node of the cluster has the slot of the stream")

    def _ask(self) -> None:
        """Find out who has what, unless somebody has just done so."""
        with self._lock:
            if time.monotonic() - self._asked_at >= _FRESH_S:
                self._ask_in_turn()

    def _ask_in_turn(self) -> None:
        """Ask the nodes one by one; the first that answers is believed."""
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
                # Those that have gone are not asked again: where nodes come back under other addresses, it would take
                # longer and longer to find one that answers.
                known = {*found.values(), *self._seeds}
                self._addresses = [other for other in dict.fromkeys([*self._addresses, *known]) if other in known]
                self._asked_at = time.monotonic()
                return
        raise failure

    def _clone(self, address: Address, *, timeout_s: float) -> redis.Redis:
        client = clone_sync(self._template, socket_timeout_s=timeout_s)
        changed = {"host": address[0], "port": address[1], "socket_connect_timeout": timeout_s}
        client.connection_pool.connection_kwargs |= changed
        return client


def servers_of(client: AnyRedis | AnyCluster, *, timeout_s: float) -> Servers:
    """Return where the streams of this client live. Synchronous clients for them wait so long for an answer."""
    if isinstance(client, RedisCluster | AsyncRedisCluster):
        return Cluster(client, timeout_s=timeout_s)
    return OneServer(client, timeout_s=timeout_s)
