"""A Redis URL of an operator's, turned into a client: what is wrong with it is said before anything is sent."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from redis.exceptions import RedisError

from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

C = TypeVar("C", "Redis", "AsyncRedis")


def client_for(from_url: Callable[..., C], url: str, **options: Any) -> C:
    """Return the client that ``Redis.from_url``, of either kind, makes. Nothing is sent, nothing of the URL is quoted.

    Raises:
        ConfigurationError: redis-py cannot read the URL, or does not know a word of its query.
    """
    try:
        _refuse_misreading(url)
        client = from_url(url, **options)
        # Makes a connection and does not open it: a word of the query that none knows is found out only here.
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except ConfigurationError:
        raise
    except (TypeError, ValueError, AttributeError, RedisError):
        raise ConfigurationError(
            "the Redis URL cannot be read; write it as redis://host:6379/0, and check the options behind a ?"
        ) from None
    return client


def _refuse_misreading(url: str) -> None:
    """Refuse what redis-py would read as something else than was meant: another server, another database."""
    parts = urlsplit(url)
    if parts.scheme not in {"redis", "rediss"}:
        return
    # An option may hold one: ?password=a@b. A bare word with one is the rest of a password that has a question mark.
    bare = [word for word in parts.query.split("&") if "=" not in word]
    if "@" in "".join((parts.path, parts.fragment, *bare)):
        raise ConfigurationError(
            "the Redis URL has an @ behind its host: write / ? # and @ in a name or a password as %2F %3F %23 and %40"
        )
    database = unquote(parts.path).strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ConfigurationError("the database in the Redis URL must be a number; write it as redis://host:6379/0")
