"""Bound the commands of one client in flight; further commands wait.

Measured with scripts: more commands at a time are not faster. The clones' pools are unbounded, so this is also the
bound on their connections.
"""

import asyncio
import contextlib
import os
import threading
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis.exceptions import RedisError

from conquiet.redis_transport.client import AnyServer, ClusterRouted, is_async

MAX_CONCURRENT = 32


class _ThreadLimit(threading.Semaphore):
    """A bound over threads, for coroutines that never suspend."""

    async def __aenter__(self) -> None:
        self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


_async_limits: WeakKeyDictionary[redis.asyncio.Redis, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)
_thread_limits: WeakKeyDictionary[redis.Redis, _ThreadLimit] = WeakKeyDictionary()

# A child gets new bounds: the commands in flight of its parent end only there.
os.register_at_fork(after_in_child=_thread_limits.clear)


def limit(client: AnyServer, key: str | bytes | None) -> asyncio.Semaphore | _ThreadLimit:
    """Return the bound for a command with this key: in the running loop, or over all threads.

    An asyncio client belongs to one loop at a time. For a synchronous client no lock is taken: a lock held during a
    fork would stay locked in the child. Two threads that create the bound at the same time get one each.
    """
    client = _node(client, key)
    if is_async(client):
        loop = asyncio.get_running_loop()
        known = _async_limits.get(client)
        if known is None or known[0] is not loop:
            known = _async_limits[client] = (loop, asyncio.Semaphore(MAX_CONCURRENT))
        return known[1]
    bound = _thread_limits.get(client)
    if bound is None:
        bound = _thread_limits[client] = _ThreadLimit(MAX_CONCURRENT)
    return bound


def _node(client: AnyServer, key: str | bytes | None) -> AnyServer:
    """Return the client of the key's node. Each node has its own bound, so that a silent one delays no other."""
    if key is not None and isinstance(client, ClusterRouted):
        with contextlib.suppress(RedisError):  # no owner is known
            node: AnyServer = client.node(client.table.owner(key))
            return node
    return client
