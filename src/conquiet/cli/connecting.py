"""Opening what a command works on, with a sentence instead of a traceback when it is not there."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

from conquiet.cli.failures import CannotConnectError, CommandError
from conquiet.cli.settings import DB, RABBIT, REDIS, need_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from conquiet.management.server import Server


@contextmanager
def redis_server(flag: str) -> "Iterator[Server]":
    """Open the Redis that is configured and make sure that it answers."""
    from conquiet.errors import QueueError
    from conquiet.management.server import Server

    url = need_url(flag, REDIS)
    with Server.from_url(url) as server:
        try:
            server.call("PING")
        except QueueError as error:
            raise CannotConnectError("Redis", url, error.__cause__ or error) from error
        yield server


@contextmanager
def database(flag: str) -> "Iterator[Engine]":
    """Open the database that is configured and make sure that it answers."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    url = need_url(flag, DB)
    try:
        engine = create_engine(url, hide_parameters=True)
    except (ArgumentError, SQLAlchemyError, ImportError, ValueError) as error:
        raise CommandError(
            "the database URL cannot be used", fix="write it as mysql+pymysql://user@host/database"
        ) from error
    try:
        try:
            engine.connect().close()
        except SQLAlchemyError as error:
            raise CannotConnectError("the database", url, error) from error
        yield engine
    finally:
        engine.dispose()


def broker(flag: str) -> None:
    """Make sure that the RabbitMQ that is configured answers and lets us in."""
    import asyncio

    from conquiet.errors import RabbitConnectionError
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
