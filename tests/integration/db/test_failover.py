"""A primary that becomes read-only: the error names it, and the connections to it are closed."""

import gc
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from conquiet.db import DbSession
from conquiet.errors import DatabaseUnavailableError, InfrastructureError

DEMOTE = {
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
}


def demote(engine: Engine) -> None:
    """Let every connection of the pool lead to a server that accepts no writes; new ones reach another."""
    held = [engine.connect() for _ in range(4)]
    for connection in held:
        connection.execute(text(DEMOTE[engine.dialect.name]))
        connection.commit()
    for connection in held:
        connection.close()


def count(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT COUNT(*) FROM orders")).scalar()


def test_one_refused_write_renews_all_connections_of_the_pool(db_url: str) -> None:
    check_renewal(db_url)


def test_the_same_on_postgresql(postgres_url: str) -> None:
    check_renewal(postgres_url)


def check_renewal(url: str) -> None:
    engine = create_engine(url, pool_size=4, max_overflow=0)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INT PRIMARY KEY)"))
    demote(engine)

    with pytest.raises(DatabaseUnavailableError, match="accepts no writes now") as caught, DbSession(engine) as session:
        session.execute("INSERT INTO orders (id) VALUES (1)")
    for number in range(2, 8):
        with DbSession(engine) as session:
            session.execute("INSERT INTO orders (id) VALUES (:id)", {"id": number})

    assert isinstance(caught.value, InfrastructureError)
    assert count(engine) == 6
    engine.dispose()


async def test_an_async_transaction_renews_them_as_well(postgres_url: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    from conquiet.transactional.async_transaction import AsyncTransaction

    engine = create_async_engine(postgres_url, pool_size=3, max_overflow=0)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (id INT PRIMARY KEY)"))
    held = [await engine.connect() for _ in range(3)]
    for connection in held:
        await connection.execute(text(DEMOTE["postgresql"]))
        await connection.commit()
    for connection in held:
        await connection.close()

    with pytest.raises(DatabaseUnavailableError):
        async with AsyncTransaction(engine) as transaction:
            await transaction.execute(text("INSERT INTO orders (id) VALUES (1)"))
    for number in range(3):
        async with AsyncTransaction(engine) as transaction:
            await transaction.execute(text(f"INSERT INTO orders (id) VALUES ({number})"))
    await engine.dispose()
    gc.collect()  # a connection that was left open is reported here, and not in another test
