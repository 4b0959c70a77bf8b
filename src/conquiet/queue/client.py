"""Our own connections, cloned from the caller's client, which stays as it is.

redis-py repeats a command whose reply was lost (3 times by default in 6 and 7, 10 times in 8). For
streams that is not harmless: a repeated XADD stores a second entry, a repeated XREADGROUP takes a
second one and leaves the first pending and unseen. So stream commands never go through the
caller's connections. The clone has the same address, database, credentials, TLS and Sentinel, and

    no retries, no health checks           each command is sent once
    replies as bytes, by RESP2             decode_responses, protocol and legacy_responses do not matter
    a socket timeout of ours               longer than the longest wait, never infinite

Sync and asyncio clients are cloned to either kind, so that an asyncio engine can have a heartbeat
thread of its own, and a synchronous one can be given to it.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from conquiet.errors import ConfigurationError
from conquiet.queue.sentinels import AnySentinelPool, async_pool, sync_pool

SOCKET_TIMEOUT_S = 10.0
"""How long a reply may take, on top of the time a read was told to wait for entries."""

AnyRedis = redis.Redis | redis.asyncio.Redis
AnyCluster = RedisCluster | AsyncRedisCluster
Address = tuple[str, int]

# What a clone decides for itself, or what belongs to the pool it was taken from.
_NOT_COPIED = frozenset({
    "cache", "cache_config", "command_packer", "connection_pool", "decode_responses", "encoding", "encoding_errors",
    "event_dispatcher", "health_check_interval", "himport_registry", "legacy_responses", "maint_notifications_config",
    "maint_notifications_pool_handler", "maintenance_notification_hash", "maintenance_state",
    "oss_cluster_maint_notifications_handler", "orig_host_address", "orig_socket_connect_timeout",
    "orig_socket_timeout", "parser_class", "protocol", "retry", "retry_on_error", "retry_on_timeout", "socket_timeout",
})  # fmt: skip

# What means the same to the synchronous and the asyncio connection classes (and ssl_*).
_PORTABLE = frozenset({
    "client_name", "credential_provider", "db", "driver_info", "host", "lib_name", "lib_version", "password", "path",
    "port", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_type", "username",
})  # fmt: skip

# What an asyncio cluster client keeps among the arguments of its connections.
_OF_THE_CLUSTER = frozenset({"max_connections", "response_callbacks"})

_TWINS: dict[type, type] = {
    redis.connection.Connection: redis.asyncio.connection.Connection,
    redis.connection.SSLConnection: redis.asyncio.connection.SSLConnection,
    redis.connection.UnixDomainSocketConnection: redis.asyncio.connection.UnixDomainSocketConnection,
    redis.sentinel.SentinelManagedConnection: redis.asyncio.sentinel.SentinelManagedConnection,
    redis.sentinel.SentinelManagedSSLConnection: redis.asyncio.sentinel.SentinelManagedSSLConnection,
}
_TWINS |= {there: here for here, there in _TWINS.items()}


def clone_sync(client: AnyRedis, *, socket_timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """Return a synchronous client of our own for the server that ``client`` talks to.

    Nothing is sent. Whoever asked for the clone closes it, and with it what it opened to ask Sentinels.

    Raises:
        ConfigurationError: ``client`` cannot be cloned; the text says what to pass instead.
    """
    pool, kwargs = _settings(client, to_async=False, socket_timeout_s=socket_timeout_s)
    kwargs["retry"] = Retry(NoBackoff(), 0)
    own = sync_pool(pool, kwargs) if isinstance(pool, AnySentinelPool) else redis.ConnectionPool(**kwargs)
    return redis.Redis.from_pool(own)


def clone_async(client: AnyRedis, *, socket_timeout_s: float = SOCKET_TIMEOUT_S) -> redis.asyncio.Redis:
    """Return an asyncio client of our own for the server that ``client`` talks to. See ``clone_sync``."""
    pool, kwargs = _settings(client, to_async=True, socket_timeout_s=socket_timeout_s)
    kwargs["retry"] = redis.asyncio.retry.Retry(NoBackoff(), 0)
    own = async_pool(pool, kwargs) if isinstance(pool, AnySentinelPool) else redis.asyncio.ConnectionPool(**kwargs)
    return redis.asyncio.Redis.from_pool(own)


class ClusterSeeds(NamedTuple):
    """What a cluster client knows about its cluster.

    Attributes:
        template: A client of one node. Clones of it reach the others once their host and port are changed.
        addresses: Nodes to ask who has which slot.
        remap: From the address a node gives for itself to the one it is reached at from here.
    """

    template: AnyRedis
    addresses: list[Address]
    remap: Callable[[Address], Address]


def cluster_seeds(client: AnyCluster) -> ClusterSeeds:
    """Return what is needed to reach the nodes of a cluster client without it. Nothing is sent."""
    manager: Any = client.nodes_manager
    addresses = [(str(node.host), int(node.port)) for node in manager.startup_nodes.values()]
    if isinstance(client, AsyncRedisCluster):
        kwargs = dict(client.connection_kwargs)
    else:
        node = client.get_default_node()  # type: ignore[no-untyped-call]
        pool: Any = client.get_redis_connection(node).connection_pool
        kwargs = {**pool.connection_kwargs, "connection_class": pool.connection_class}
        kwargs["redis_connect_func"] = client.user_on_connect_func
    for name in _OF_THE_CLUSTER:
        kwargs.pop(name, None)
    kwargs |= {"host": addresses[0][0], "port": addresses[0][1]}
    if isinstance(client, AsyncRedisCluster):
        kwargs.pop("redis_connect_func", None)  # the client's own, for replicas
        template: AnyRedis = redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(**kwargs))
    else:
        template = redis.Redis.from_pool(redis.ConnectionPool(**kwargs))
    return ClusterSeeds(template, addresses, manager.address_remap or (lambda address: address))


def _settings(client: AnyRedis, *, to_async: bool, socket_timeout_s: float) -> tuple[Any, dict[str, Any]]:
    """Return the caller's pool and the arguments of ours."""
    pool = _pool_of(client)
    given: dict[str, Any] = pool.connection_kwargs
    source = cast("type", pool.connection_class)
    if isinstance(client, redis.asyncio.Redis) == to_async:
        target = source
        kwargs = {name: value for name, value in given.items() if name not in _NOT_COPIED}
    else:
        target = _twin(source)
        kwargs = _translated(given, target)
    kwargs |= {
        "connection_class": target,
        "protocol": 2,
        "decode_responses": False,
        "health_check_interval": 0,
        "socket_timeout": socket_timeout_s,
    }
    if kwargs.get("socket_connect_timeout") is None:
        kwargs["socket_connect_timeout"] = socket_timeout_s
    return pool, kwargs


def _pool_of(client: object) -> Any:
    if isinstance(client, RedisCluster | AsyncRedisCluster):
        # The asyncio client has the same look-up and no clients for single nodes.
        node_client = (
            "client.get_redis_connection(client.get_node_from_key(stream_key))"
            if isinstance(client, RedisCluster)
            else "redis.asyncio.Redis(host=node.host, port=node.port) with node = client.get_node_from_key(stream_key)"
        )
        raise ConfigurationError(
            f"a RedisCluster client cannot be cloned: a stream lives on one node. Pass a client for the node that "
            f"holds it, e.g. {node_client}"
        )
    if not isinstance(client, redis.Redis | redis.asyncio.Redis):
        kind = type(client)
        raise ConfigurationError(
            f"redis must be a redis.Redis or redis.asyncio.Redis client, got {kind.__module__}.{kind.__qualname__}. "
            "Pass redis.Redis(...), redis.Redis.from_url(...) or Sentinel(...).master_for(...)"
        )
    pool = client.connection_pool
    if not getattr(pool, "is_master", True):
        raise ConfigurationError(
            "the client reads from a Sentinel replica, but reading a consumer group writes: pass master_for(...)"
        )
    return pool


def _twin(source: type) -> type:
    try:
        return _TWINS[source]
    except KeyError:
        raise ConfigurationError(
            f"a client with connections of class {source.__module__}.{source.__qualname__} cannot be cloned between "
            "redis and redis.asyncio. Pass a client of the other kind, built by its own redis.Redis(...)"
        ) from None


def _translated(given: dict[str, Any], target: type) -> dict[str, Any]:
    """Return what the other kind of connection understands; refuse to drop what protects a connection."""
    known = {name for kind in target.__mro__ for name in inspect.signature(kind.__init__).parameters}  # type: ignore[misc]
    kwargs: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NOT_COPIED:
            continue
        if name in known and (name in _PORTABLE or name.startswith("ssl_")):
            kwargs[name] = value
        elif value and (name.startswith("ssl_") or name == "redis_connect_func"):
            raise ConfigurationError(
                f"the client's setting {name} has no counterpart in {target.__module__}. "
                "Pass a client of that kind, built with what it offers"
            )
    return kwargs
