"""Opening what a command works on, with a sentence instead of a traceback when it is not there."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from conquiet.cli.failures import CannotConnectError, CommandError
from conquiet.cli.settings import DB, RABBIT, REDIS, need_url
from conquiet.kernel.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from conquiet.management.server import Server

_DB_EXAMPLE: Final = "mysql+pymysql://user@host/database"
_RABBIT_EXAMPLE: Final = "amqp://user:password@host:5672/%2F"

UNUSABLE: Final = (TypeError, ValueError, AttributeError)
"""What client libraries raise for a host or an option that they cannot use, some of it only when they connect."""


class UrlError(CommandError):
    """A URL cannot be used. The library's own words may quote it, password included, so only their type is said."""

    def __init__(self, what: str, example: str, error: BaseException) -> None:
        super().__init__(
            f"{what} cannot be used ({type(error).__name__})", fix=f"write it as {example}, and check its options"
        )


@contextmanager
def redis_server(flag: str) -> "Iterator[Server]":
    """Open the Redis that is configured and make sure that it answers."""
    require_extra("redis", "redis", "hiredis", "msgspec")
    from conquiet.errors import QueueError
    from conquiet.management.server import Server

    url = need_url(flag, REDIS)
    with Server.from_url(url) as server:
        try:
            server.call("PING")
        except QueueError as error:
            raise CannotConnectError("Redis", url, error.__cause__ or error) from error
        except UNUSABLE as error:
            raise UrlError("the Redis URL", "redis://host:6379/0", error) from None
        yield server


@contextmanager
def database(flag: str) -> "Iterator[Engine]":
    """Open the database that is configured and make sure that it answers."""
    require_extra("mysql", "sqlalchemy")
    from sqlalchemy import create_engine

    with connected_engine(need_url(flag, DB), lambda url: create_engine(url, hide_parameters=True)) as engine:
        yield engine


@contextmanager
def connected_engine(url: str, make: "Callable[[str], Engine]") -> "Iterator[Engine]":
    """Make an engine, see that its database answers, and dispose of it in the end."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        engine = make(url)
    except (SQLAlchemyError, ImportError, *UNUSABLE) as error:
        raise UrlError("the database URL", _DB_EXAMPLE, error) from None
    try:
        if engine.dialect.name == "sqlite" and engine.url.database in {None, "", ":memory:"}:
            raise CommandError("a database in memory ends with this command", fix="name a file: sqlite:///shop.db")
        try:
            engine.connect().close()
        except SQLAlchemyError as error:
            raise CannotConnectError("the database", url, error) from error
        except (OSError, *UNUSABLE) as error:  # the driver's own, of an option in the URL
            raise UrlError("the database URL", _DB_EXAMPLE, error) from None
        yield engine
    finally:
        engine.dispose()


def broker(flag: str) -> None:
    """Make sure that the RabbitMQ that is configured answers and lets us in."""
    import asyncio

    from conquiet.errors import ConfigurationError, RabbitConnectionError
    from conquiet.rabbit.address import Address
    from conquiet.rabbit.connection import Link

    url = need_url(flag, RABBIT)

    async def knock() -> None:
        link = await Link.open(Address((url,), name="conquiet.operator"))
        await link.close()

    try:
        asyncio.run(knock())
    except RabbitConnectionError as error:
        raise CannotConnectError("RabbitMQ", url, error.__cause__ or error) from error
    except ConfigurationError as error:
        raise CommandError(str(error), fix=f"write it as {_RABBIT_EXAMPLE}") from None
    except UNUSABLE as error:
        raise UrlError("the RabbitMQ URL", _RABBIT_EXAMPLE, error) from None
