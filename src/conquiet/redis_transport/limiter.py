"""Bound the commands of one client in flight; further commands wait.

Measured with scripts: more commands at a time are not faster. The clones' pools are unbounded, so this is also the
bound on their connections.
"""

import asyncio
import contextlib
import threading
from typing import TypeVar
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis.exceptions import RedisError

from conquiet.redis_transport.client import ClusterRouted

C = TypeVar("C", redis.Redis, redis.asyncio.Redis)

MAX_CONCURRENT = 32

_async_limits: WeakKeyDictionary[redis.asyncio.Redis, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)
_sync_limits: WeakKeyDictionary[redis.Redis, threading.Semaphore] = WeakKeyDictionary()


def async_limit(client: redis.asyncio.Redis, key: str | bytes | None) -> asyncio.Semaphore:
    """Return the bound for a command with this key in the running loop. A client belongs to one loop at a time."""
    client = _node(client, key)
    loop = asyncio.get_running_loop()
    known = _async_limits.get(client)
    if known is None or known[0] is not loop:
        known = _async_limits[client] = (loop, asyncio.Semaphore(MAX_CONCURRENT))
    return known[1]


def sync_limit(client: redis.Redis, key: str | bytes | None) -> threading.Semaphore:
    """Return the bound for a command with this key, over all threads.

    Takes no lock: a lock held during a fork would stay locked in the child. Two threads that create the bound at
    the same time get one each.
    """
    client = _node(client, key)
    known = _sync_limits.get(client)
    if known is None:
        known = _sync_limits[client] = threading.Semaphore(MAX_CONCURRENT)
    return known


def _node(client: C, key: str | bytes | None) -> C:
    """Return the client of the key's node. Each node has its own bound, so that a silent one delays no other."""
    if key is not None and isinstance(client, ClusterRouted):
        with contextlib.suppress(RedisError):  # no owner is known
            found: C = client.node(client.table.owner(key))
            return found
    return client
