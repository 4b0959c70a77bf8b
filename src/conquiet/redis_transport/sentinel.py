"""Clone a pool that finds its master by Sentinel.

the caller's client is of the clone's kind        the clone uses the caller's Sentinel, and does not close it
it is of the other kind (redis, redis.asyncio)    the clone has its own Sentinel, closed with the clone
"""

from typing import Any

import redis.asyncio.sentinel
import redis.sentinel

AnySentinelPool = redis.sentinel.SentinelConnectionPool | redis.asyncio.sentinel.SentinelConnectionPool

# Settings of a Sentinel's connections that exist in both kinds (and ssl_*).
_KEPT = frozenset({
    "client_name", "credential_provider", "db", "password", "socket_connect_timeout", "socket_keepalive",
    "socket_keepalive_options", "socket_timeout", "ssl", "username",
})  # fmt: skip


class _OwnPool(redis.sentinel.SentinelConnectionPool):
    """A pool that also closes its Sentinel."""

    def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's signature
        super().disconnect(inuse_connections)
        if inuse_connections:  # else the master has moved, and the Sentinels are needed again
            for sentinel in self.sentinel_manager.sentinels:
                sentinel.close()


class _OwnAsyncPool(redis.asyncio.sentinel.SentinelConnectionPool):
    """A pool that also closes its Sentinel, for asyncio."""

    async def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's signature
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


def sentinel_pool(callers: AnySentinelPool, settings: dict[str, Any], *, to_async: bool) -> Any:
    """Return a pool that finds the master as the caller's does; ``settings`` apply to its connections."""
    kind: Any = redis.asyncio.sentinel if to_async else redis.sentinel
    manager: Any = callers.sentinel_manager
    if isinstance(manager, kind.Sentinel):
        return kind.SentinelConnectionPool(callers.service_name, manager, **settings)
    own_pool: Any = _OwnAsyncPool if to_async else _OwnPool
    return own_pool(callers.service_name, kind.Sentinel(**_arguments(manager)), **settings)


def _arguments(manager: Any) -> dict[str, Any]:
    """Return arguments for a Sentinel of the other kind with the same addresses and settings."""
    peers = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    given: dict[str, Any] = manager.sentinel_kwargs
    return {
        "sentinels": [(peer["host"], peer["port"]) for peer in peers],
        "min_other_sentinels": manager.min_other_sentinels,
        "sentinel_kwargs": {name: value for name, value in given.items() if name in _KEPT or name.startswith("ssl_")},
        "force_master_ip": manager._force_master_ip,  # noqa: SLF001 - it is not kept under another name
    }
