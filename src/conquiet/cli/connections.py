"""Connect to the servers of a command. A server that cannot be used is reported in one sentence."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from conquiet.cli.errors import CannotConnectError, CommandError
from conquiet.cli.forced_end import force_end_after_interrupt
from conquiet.cli.settings import DB, RABBIT, REDIS, require_url
from conquiet.core.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from sqlalchemy import Engine

    from conquiet.management.redis_admin import RedisAdmin

T = TypeVar("T")

_DB_EXAMPLE: Final = "mysql+pymysql://user@host/database"
_RABBIT_EXAMPLE: Final = "amqp://user:password@host:5672/%2F"

URL_ERRORS: Final = (TypeError, ValueError, AttributeError)
"""Raised by client libraries for a host or an option that they cannot use, sometimes only when they connect."""


class UrlError(CommandError):
    """A URL cannot be used. The library's text may quote it, password included, so only the error's type is shown."""

    def __init__(self, what: str, example: str, error: BaseException) -> None:
        super().__init__(
            f"{what} cannot be used ({type(error).__name__})", fix=f"write it as {example}, and check its options"
        )


@contextmanager
def open_redis(flag: str) -> "Iterator[RedisAdmin]":
    """Connect to the configured Redis and check that it replies."""
    require_extra("redis", "redis", "hiredis")
    from conquiet.errors import QueueError
    from conquiet.management.redis_admin import RedisAdmin

    url = require_url(flag, REDIS)
    with RedisAdmin.from_url(url) as server:
        try:
            server.call("PING")
        except QueueError as error:
            raise CannotConnectError("Redis", url, error.__cause__ or error) from error
        except URL_ERRORS as error:
            raise UrlError("the Redis URL", "redis://host:6379/0", error) from None
        with force_end_after_interrupt():
            yield server


def call_redis(
    flag: str, work: "Callable[[Any], Awaitable[T]]", *, check: "Callable[[RedisAdmin], object] | None" = None
) -> T:
    """Return ``await work(client)`` with an asyncio client of the configured Redis, which must pass ``check`` first."""
    with open_redis(flag) as server:
        from conquiet.management.async_redis import with_redis

        if check is not None:
            check(server)
        return with_redis(require_url(flag, REDIS), work)


@contextmanager
def open_database(flag: str) -> "Iterator[Engine]":
    """Connect to the configured database and check that it replies. A URL with an asynchronous driver works too."""
    require_extra("mysql", "sqlalchemy")
    from sqlalchemy import create_engine, make_url

    from conquiet.app.database import with_driver

    def make(url: str) -> "Engine":
        return create_engine(with_driver(make_url(url), asynchronous=False), hide_parameters=True)

    with checked_engine(require_url(flag, DB), make) as engine:
        yield engine


@contextmanager
def checked_engine(url: str, make: "Callable[[str], Engine]") -> "Iterator[Engine]":
    """Create an engine, check that its database replies, and dispose of it at the end."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        engine = make(url)
    except (SQLAlchemyError, ImportError, *URL_ERRORS) as error:
        raise UrlError("the database URL", _DB_EXAMPLE, error) from None
    try:
        if engine.dialect.name == "sqlite" and engine.url.database in {None, "", ":memory:"}:
            raise CommandError("a database in memory ends with this command", fix="name a file: sqlite:///shop.db")
        try:
            engine.connect().close()
        except SQLAlchemyError as error:
            raise CannotConnectError("the database", url, error) from error
        except (OSError, *URL_ERRORS) as error:  # raised by the driver for an option in the URL
            raise UrlError("the database URL", _DB_EXAMPLE, error) from None
        with force_end_after_interrupt():
            yield engine
    finally:
        engine.dispose()


def check_broker(flag: str) -> None:
    """Check that the configured RabbitMQ replies and accepts the login."""
    import asyncio

    from conquiet.errors import ConfigurationError, RabbitConnectionError
    from conquiet.rabbit.address import Address, as_urls
    from conquiet.rabbit.any_node import open_on_any_node

    url = require_url(flag, RABBIT)

    async def ping() -> None:
        link = await open_on_any_node(Address(as_urls(url), name="conquiet.operator"))
        await link.close()

    try:
        asyncio.run(ping())
    except RabbitConnectionError as error:
        raise CannotConnectError("RabbitMQ", url, error.__cause__ or error) from error
    except ConfigurationError as error:
        raise CommandError(str(error), fix=f"write it as {_RABBIT_EXAMPLE}") from None
    except URL_ERRORS as error:
        raise UrlError("the RabbitMQ URL", _RABBIT_EXAMPLE, error) from None
