"""The driver and the engine for each kind of database argument."""

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from conquiet.app.database import Database, parsed_url, with_driver
from conquiet.app.parameters import SessionKind
from conquiet.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "sync", "asynchronous"),
    [
        ("mysql+asyncmy://h/d", "mysql+pymysql", "mysql+asyncmy"),
        ("mysql+aiomysql://h/d", "mysql+pymysql", "mysql+aiomysql"),
        ("mysql+pymysql://h/d", "mysql+pymysql", "mysql+asyncmy"),
        ("mysql+mysqldb://h/d", "mysql+mysqldb", "mysql+asyncmy"),
        ("mariadb://h/d", "mariadb+pymysql", "mariadb+asyncmy"),
        ("mysql://h/d", "mysql+pymysql", "mysql+asyncmy"),
        ("postgresql+asyncpg://h/d", "postgresql+psycopg", "postgresql+asyncpg"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg", "postgresql+psycopg"),
        ("postgresql://h/d", "postgresql+psycopg", "postgresql+psycopg"),
        ("sqlite+aiosqlite:///shop.db", "sqlite+pysqlite", "sqlite+aiosqlite"),
        ("sqlite:///shop.db", "sqlite", "sqlite+aiosqlite"),
    ],
)
def test_a_url_serves_both_kinds_of_handlers(url: str, sync: str, asynchronous: str) -> None:
    parsed = parsed_url(url)

    assert with_driver(parsed, asynchronous=False).drivername == sync
    assert with_driver(parsed, asynchronous=True).drivername == asynchronous


def test_a_password_stays_in_the_url_and_out_of_the_error() -> None:
    url = with_driver(make_url("mysql+asyncmy://user:secret@host/shop"), asynchronous=False)

    assert url.password == "secret"
    with pytest.raises(ConfigurationError, match="the database URL cannot be read") as refused:
        parsed_url("user:secret@host")
    assert "secret" not in str(refused.value)


def test_a_given_engine_is_used_and_never_closed() -> None:
    engine = create_engine("sqlite://")
    maker = sessionmaker(engine)
    database = Database(maker)

    assert database.source_for(SessionKind.SESSION) is maker
    assert database.source_for(SessionKind.DB_SESSION) is engine
    assert database.sync_engine() is engine


async def test_an_engine_that_was_made_here_is_closed_and_made_again() -> None:
    database = Database("sqlite:///shop.db")
    first, first_async = database.sync_engine(), database.source_for(SessionKind.ASYNC_CONNECTION)

    await database.close()

    assert database.sync_engine() is not first
    assert database.source_for(SessionKind.ASYNC_CONNECTION) is not first_async
    await database.close()


async def test_a_given_async_engine_survives_the_close() -> None:
    engine = create_async_engine("sqlite+aiosqlite:///shop.db")
    maker = async_sessionmaker(engine)
    database = Database(maker)

    await database.close()

    assert database.source_for(SessionKind.ASYNC_SESSION) is maker
    assert database.source_for(SessionKind.ASYNC_CONNECTION) is engine
    assert str(database.sync_engine().url) == "sqlite+pysqlite:///shop.db"
    await database.close()
    await engine.dispose()


async def test_a_database_in_the_memory_of_an_async_engine_has_no_relay() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")

    with pytest.raises(ConfigurationError, match=r"in the memory of its AsyncEngine.*name a file"):
        Database(engine).sync_engine()
    await engine.dispose()


@pytest.mark.parametrize(("concurrency", "size"), [(1, 5), (32, 32)])
def test_a_pool_has_a_connection_for_each_handler(concurrency: int, size: int) -> None:
    database = Database("mysql://user@127.0.0.1:1/shop")
    database.concurrency = concurrency

    assert database.sync_engine().pool.size() == size  # type: ignore[attr-defined]
    made = database.source_for(SessionKind.ASYNC_CONNECTION)
    assert isinstance(made, AsyncEngine)
    assert made.sync_engine.pool.size() == size  # type: ignore[attr-defined]
