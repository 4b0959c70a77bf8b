"""Clone the caller's redis-py client into our own connections. The caller's client is not changed.

redis-py repeats a command after a lost reply (3 times by default in 6 and 7, 10 times in 8). A repeated XADD stores a
second entry; a repeated XREADGROUP takes a second one and leaves the first pending and unseen. So stream commands never
use the caller's connections. The clone has the same address, database, credentials, TLS and Sentinel, and

    no retries, no health checks           each command is sent once
    replies as bytes, by RESP2             decode_responses, protocol and legacy_responses have no effect
    no bound on connections                redis-py 8 raises at the 101st concurrent command; ``limiter`` bounds them
    its own socket timeout                 longer than the longest wait, never infinite

Both kinds of client (``redis``, ``redis.asyncio``) can be cloned to either kind: an asyncio worker has a heartbeat
thread with a synchronous connection, and the caller may pass a synchronous client to an asyncio worker.

The clone of a cluster's client (``RedisCluster``, or one made from ``redis://…?cluster=true``) is a client of the same
kind as any other clone, and sends each command to the node that holds its key; see ``cluster_client``.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
from redis.exceptions import RedisError
from redis.retry import Retry

from conquiet.errors import ConfigurationError
from conquiet.redis_transport.closed_transport import plain_class, reporting_closed_transport
from conquiet.redis_transport.routing import NodeAddress
from conquiet.redis_transport.sentinel import AnySentinelPool, sentinel_pool

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from conquiet.redis_transport.slot_table import SlotTable

SOCKET_TIMEOUT_S = 10.0
"""Longest wait for a reply, in addition to the BLOCK time of a read."""

MAX_CONNECTIONS = 2**31
"""Size of a clone's pool: unbounded. redis-py 8 defaults to 100, and the 101st blocking read would fail."""

SyncClient = redis.Redis
AsyncClient = redis.asyncio.Redis
AnyCluster = RedisCluster | AsyncRedisCluster
AnyServer = redis.Redis | redis.asyncio.Redis
AnyRedis = AnyServer | AnyCluster
"""A client that callers may pass: of one server, of the master that Sentinels name, or of a Redis Cluster."""

# Settings that a clone sets, or that belong to the pool of the original.
_NOT_COPIED = frozenset({
    "cache", "cache_config", "command_packer", "connection_pool", "decode_responses", "encoding", "encoding_errors",
    "event_dispatcher", "health_check_interval", "himport_registry", "legacy_responses", "maint_notifications_config",
    "maint_notifications_pool_handler", "maintenance_notification_hash", "maintenance_state",
    "oss_cluster_maint_notifications_handler", "orig_host_address", "orig_socket_connect_timeout",
    "orig_socket_timeout", "parser_class", "protocol", "retry", "retry_on_error", "retry_on_timeout", "socket_timeout",
})  # fmt: skip

# Settings with the same meaning in the synchronous and the asyncio connection classes (and ssl_*).
_PORTABLE = frozenset({
    "client_name", "credential_provider", "db", "driver_info", "host", "lib_name", "lib_version", "password", "path",
    "port", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_type", "username",
})  # fmt: skip

# Settings of the cluster that an asyncio cluster client keeps among the settings of its connections.
_OF_THE_CLUSTER = frozenset({"max_connections", "response_callbacks"})

_COUNTERPARTS: dict[type, type] = {
    redis.connection.Connection: redis.asyncio.connection.Connection,
    redis.connection.SSLConnection: redis.asyncio.connection.SSLConnection,
    redis.connection.UnixDomainSocketConnection: redis.asyncio.connection.UnixDomainSocketConnection,
    redis.sentinel.SentinelManagedConnection: redis.asyncio.sentinel.SentinelManagedConnection,
    redis.sentinel.SentinelManagedSSLConnection: redis.asyncio.sentinel.SentinelManagedSSLConnection,
}
_COUNTERPARTS |= {asynchronous: synchronous for synchronous, asynchronous in _COUNTERPARTS.items()}


def clone_sync(client: AnyRedis, *, socket_timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """Return a synchronous clone for the server or the cluster of ``client``.

    Nothing is sent. The caller closes the clone, which also closes its connections to Sentinels.

    Raises:
        ConfigurationError: ``client`` cannot be cloned; the text names a client that can.
    """
    if is_cluster(client):
        from conquiet.redis_transport.cluster_client import SyncClusterClient  # imports this module

        return SyncClusterClient(cluster_seeds(client), socket_timeout_s=socket_timeout_s)
    return redis.Redis.from_pool(_cloned_pool(client, to_async=False, socket_timeout_s=socket_timeout_s))


def clone_async(client: AnyRedis, *, socket_timeout_s: float = SOCKET_TIMEOUT_S) -> redis.asyncio.Redis:
    """Return an asyncio clone for the server or the cluster of ``client``. See ``clone_sync``."""
    if is_cluster(client):
        from conquiet.redis_transport.cluster_client import AsyncClusterClient  # imports this module

        return AsyncClusterClient(cluster_seeds(client), socket_timeout_s=socket_timeout_s)
    return redis.asyncio.Redis.from_pool(_cloned_pool(client, to_async=True, socket_timeout_s=socket_timeout_s))


def clone_to(client: AnyRedis, address: NodeAddress, *, timeout_s: float) -> redis.Redis:
    """Return a synchronous clone for another server that takes the same credentials."""
    if is_cluster(client):
        client = cluster_seeds(client).template
    clone = clone_sync(client, socket_timeout_s=timeout_s)
    clone.connection_pool.connection_kwargs |= {
        "host": address[0],
        "port": address[1],
        "socket_connect_timeout": timeout_s,
    }
    return clone


def abort_client(client: redis.Redis) -> None:
    """Close the connections of a client that another thread is using: its pending call fails immediately."""
    with contextlib.suppress(RedisError, OSError):
        client.connection_pool.disconnect(inuse_connections=True)


class ClusterSeeds(NamedTuple):
    """Facts of a cluster client that are needed to reach the nodes without it.

    Attributes:
        template: A client of one node. Clones of it reach the others once their host and port are changed.
        addresses: Nodes that the slot table is fetched from.
        remap: Maps the address that a node announces to the one it is reached at from here.
    """

    template: AnyServer
    addresses: list[NodeAddress]
    remap: Callable[[NodeAddress], NodeAddress]


class ClusterRouted:
    """Mark our own clients of a Redis Cluster, which have the interface of a client of one server."""

    seeds: ClusterSeeds
    table: "SlotTable"
    node: Callable[[NodeAddress], Any]
    send_together: Callable[..., Any]


def is_cluster(client: object) -> bool:
    """Return whether this is a client of a Redis Cluster, redis-py's or our own."""
    return isinstance(client, RedisCluster | AsyncRedisCluster | ClusterRouted)


def is_async(client: AnyServer) -> "TypeIs[redis.asyncio.Redis]":
    """Return whether this is an asyncio client. Called for each command; ``isinstance`` would take a microsecond."""
    return _is_async_class(type(client))


@functools.cache
def _is_async_class(kind: type) -> bool:
    return not issubclass(kind, redis.Redis)


def cluster_seeds(client: Any) -> ClusterSeeds:
    """Return the seeds of a cluster client. Nothing is sent."""
    if isinstance(client, ClusterRouted):
        return client.seeds
    manager: Any = client.nodes_manager
    addresses = [(str(node.host), int(node.port)) for node in manager.startup_nodes.values()]
    if isinstance(client, AsyncRedisCluster):
        kwargs = dict(client.connection_kwargs)
    else:
        node = client.get_default_node()
        pool: Any = client.get_redis_connection(node).connection_pool
        kwargs = {**pool.connection_kwargs, "connection_class": pool.connection_class}
        kwargs["redis_connect_func"] = client.user_on_connect_func
    for name in _OF_THE_CLUSTER:
        kwargs.pop(name, None)
    kwargs |= {"host": addresses[0][0], "port": addresses[0][1]}
    if isinstance(client, AsyncRedisCluster):
        kwargs.pop("redis_connect_func", None)  # the client's own, for replicas
        template: AnyServer = redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(**kwargs))
    else:
        template = redis.Redis.from_pool(redis.ConnectionPool(**kwargs))
    return ClusterSeeds(template, addresses, manager.address_remap or (lambda address: address))


def _cloned_pool(client: AnyRedis, *, to_async: bool, socket_timeout_s: float) -> Any:
    """Return the clone's pool."""
    pool = _pool_of(client)
    given: dict[str, Any] = pool.connection_kwargs
    source = plain_class(cast("type", pool.connection_class))
    if isinstance(client, redis.asyncio.Redis) == to_async:
        target = source
        kwargs = {name: value for name, value in given.items() if name not in _NOT_COPIED}
    else:
        target = _counterpart(source)
        kwargs = _translated(given, target)
    kwargs |= {
        "connection_class": reporting_closed_transport(target) if to_async else target,
        "protocol": 2,
        "decode_responses": False,
        "health_check_interval": 0,
        "socket_timeout": socket_timeout_s,
        "max_connections": MAX_CONNECTIONS,
        "retry": (redis.asyncio.retry.Retry if to_async else Retry)(NoBackoff(), 0),
    }
    if kwargs.get("socket_connect_timeout") is None:
        kwargs["socket_connect_timeout"] = socket_timeout_s
    if isinstance(pool, AnySentinelPool):
        return sentinel_pool(pool, kwargs, to_async=to_async)
    return (redis.asyncio.ConnectionPool if to_async else redis.ConnectionPool)(**kwargs)


def require_raw_client(client: object, *, sends_once: bool = False) -> None:
    """Check a client that is used as it is: a clone, or a client with the same settings.

    Args:
        client: The client.
        sends_once: Refuse retries: a repeated command would store a second message.

    Raises:
        ConfigurationError: It is not a client, it decodes replies, or it repeats commands.
    """
    problem = ""
    settings: dict[str, Any] = getattr(getattr(client, "connection_pool", client), "connection_kwargs", {})
    if not hasattr(client, "execute_command"):
        problem = f"is a {type(client).__name__}"
    elif settings.get("decode_responses"):
        problem = "decodes replies"
    elif sends_once and getattr(settings.get("retry", getattr(client, "retry", None)), "_retries", 0) != 0:
        problem = "repeats a command after a lost reply, which may store a message twice"
    if problem:
        raise ConfigurationError(
            f"the client {problem}: use a Processor or a SyncEmitter, which clone the client that they are given, or "
            "pass redis.asyncio.Redis(…, retry=Retry(NoBackoff(), 0)) without decode_responses"
        )


def _pool_of(client: object) -> Any:
    if not isinstance(client, redis.Redis | redis.asyncio.Redis):
        kind = type(client)
        raise ConfigurationError(
            f"redis must be a redis.Redis or redis.asyncio.Redis client, got {kind.__module__}.{kind.__qualname__}. "
            "Pass redis.Redis(...), redis.Redis.from_url(...), Sentinel(...).master_for(...) or redis.RedisCluster(...)"
        )
    pool = client.connection_pool
    if not getattr(pool, "is_master", True):
        raise ConfigurationError(
            "the client reads from a Sentinel replica, but reading a consumer group writes: pass master_for(...)"
        )
    return pool


def _counterpart(source: type) -> type:
    try:
        return _COUNTERPARTS[source]
    except KeyError:
        raise ConfigurationError(
            f"a client with connections of class {source.__module__}.{source.__qualname__} cannot be cloned between "
            "redis and redis.asyncio. Pass a client of the other kind, built by its own redis.Redis(...)"
        ) from None


def _translated(given: dict[str, Any], target: type) -> dict[str, Any]:
    """Return the settings that the other kind of connection has; refuse to drop a setting that protects it."""
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
