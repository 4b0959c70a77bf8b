"""Connections of a pool that was renewed after a fail-over."""

import sqlite3

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import QueuePool

from conquiet.db.failover import renew_pool


def test_a_connection_in_use_is_closed_when_its_pool_was_renewed() -> None:
    engine = create_engine("sqlite://", poolclass=QueuePool)
    connection, idle = engine.raw_connection(), engine.raw_connection()
    idle.close()
    in_use, was_idle = connection.driver_connection, idle.driver_connection

    renew_pool(engine)
    connection.cursor().execute("SELECT 1")
    connection.close()

    assert isinstance(in_use, sqlite3.Connection)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        in_use.execute("SELECT 1")
    assert was_idle is None
    assert engine.pool.status().startswith("Pool size: 5  Connections in pool: 0")
    engine.dispose()


def test_connections_of_the_new_pool_are_kept() -> None:
    engine = create_engine("sqlite://", poolclass=QueuePool)
    renew_pool(engine)
    for _ in range(2):
        connection = engine.raw_connection()
        kept = connection.driver_connection
        connection.close()

    assert isinstance(kept, sqlite3.Connection)
    assert kept.execute("SELECT 1").fetchone() == (1,)
    engine.dispose()
