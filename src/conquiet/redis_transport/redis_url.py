"""Turn a Redis URL into a client, and report a bad URL before anything is sent.

``redis://host:6379/0?cluster=true`` is a node of a Redis Cluster. Further nodes may be named, separated by commas, in
case the first is unavailable: ``redis://one:7000,two:7000/0?cluster=true``.
"""

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from conquiet.errors import ConfigurationError
from conquiet.redis_transport.client import SOCKET_TIMEOUT_S, AsyncClient, ClusterSeeds, SyncClient
from conquiet.redis_transport.cluster_client import AsyncClusterClient, SyncClusterClient
from conquiet.redis_transport.errors import RedisError
from conquiet.redis_transport.routing import NodeAddress

C = TypeVar("C", SyncClient, AsyncClient)

_PORT = 6379
_YES = frozenset({"true", "yes", "1"})
_NO = frozenset({"false", "no", "0"})


def client_from_url(from_url: Callable[..., C], url: str, **options: Any) -> C:
    """Return the client that ``Redis.from_url``, of either kind, makes. Nothing is sent, nothing of the URL is quoted.

    Raises:
        ConfigurationError: redis-py cannot read the URL, or does not know an option of its query.
    """
    try:
        url, others = _split_cluster_url(url)
        _reject_ambiguous_url(url)
        client = from_url(url, **options)
        # Creates a connection without opening it: redis-py rejects an unknown option only here.
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except ConfigurationError:
        raise
    except (TypeError, ValueError, AttributeError, RedisError):
        raise ConfigurationError(
            "the Redis URL cannot be read; write it as redis://host:6379/0, and check the options behind a ?"
        ) from None
    return client if others is None else _of_cluster(client, others)


def _split_cluster_url(url: str) -> tuple[str, list[NodeAddress] | None]:
    """Return the URL of one node, and the addresses of the others; None if it is not the URL of a cluster."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    wanted = [value for name, value in options if name == "cluster"]
    login, at, hosts = parts.netloc.rpartition("@")
    first, *others = hosts.split(",")
    if not wanted:
        if others:
            raise ConfigurationError("a Redis URL with several hosts needs the option ?cluster=true")
        return url, None
    if wanted[-1].lower() not in _YES | _NO:
        raise ConfigurationError("the option cluster of the Redis URL must be true or false")
    if parts.scheme == "unix":
        raise ConfigurationError("a Redis Cluster is reached by TCP; write its URL as redis://host:6379/0?cluster=true")
    query = urlencode([(name, value) for name, value in options if name != "cluster"])
    single = urlunsplit((parts.scheme, f"{login}{at}{first}", parts.path, query, parts.fragment))
    if wanted[-1].lower() in _NO:
        return single, None
    if unquote(parts.path).strip("/") not in {"", "0"}:
        raise ConfigurationError("a Redis Cluster has one database only; write its URL as redis://host:6379/0")
    found = [urlsplit(f"//{other}") for other in others]
    return single, [(other.hostname or "", other.port or _PORT) for other in found]


def _of_cluster(node: C, others: list[NodeAddress]) -> C:
    """Return the client of the cluster that this node belongs to."""
    pool: Any = node.connection_pool
    given = pool.connection_kwargs
    first = (given.get("host", "localhost"), given.get("port", _PORT))
    seeds = ClusterSeeds(node, [first, *others], lambda address: address)
    if isinstance(node, SyncClient):
        return SyncClusterClient(seeds, socket_timeout_s=SOCKET_TIMEOUT_S)
    return AsyncClusterClient(seeds, socket_timeout_s=SOCKET_TIMEOUT_S)


def _reject_ambiguous_url(url: str) -> None:
    """Reject a URL that redis-py would read as another server or another database than was meant."""
    parts = urlsplit(url)
    if parts.scheme not in {"redis", "rediss"}:
        return
    # An option may contain an @: ?password=a@b. A bare word with an @ is the rest of a password with a question mark.
    bare = [word for word in parts.query.split("&") if "=" not in word]
    if "@" in "".join((parts.path, parts.fragment, *bare)):
        raise ConfigurationError(
            "the Redis URL has an @ behind its host: write / ? # and @ in a name or a password as %2F %3F %23 and %40"
        )
    database = unquote(parts.path).strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ConfigurationError("the database in the Redis URL must be a number; write it as redis://host:6379/0")
