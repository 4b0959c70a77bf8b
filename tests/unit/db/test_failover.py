"""Refusals that mean that a server was demoted, and the connections of its pool afterwards."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import QueuePool

from conquiet.db.failover import is_demotion, renew_pool
from conquiet.errors import DbWriteError


class DriverError(Exception):
    """An error as PyMySQL raises it (a number first), or as psycopg does (``sqlstate``)."""

    sqlstate: str | None = None


def refusal(number: int | None = None, sqlstate: str | None = None) -> OperationalError:
    error = DriverError(number, "read-only") if number is not None else DriverError("read-only")
    error.sqlstate = sqlstate
    return OperationalError("INSERT", {}, error)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refusal(1290), True),
        (refusal(1792), True),
        (refusal(1836), True),
        (refusal(1205), False),
        (refusal(sqlstate="25006"), True),
        (refusal(sqlstate="40001"), False),
        (ValueError("1290"), False),
        (None, False),
    ],
)
def test_each_refusal_of_a_read_only_server_is_a_demotion(error: BaseException | None, expected: bool) -> None:  # noqa: FBT001 - of a table
    assert is_demotion(error) is expected

    wrapped = DbWriteError("the write failed")
    wrapped.__cause__ = error
    assert is_demotion(wrapped) is expected


def test_a_renewed_pool_closes_its_idle_connections_at_once(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}", poolclass=QueuePool)
    closed: list[object] = []
    event.listen(engine, "close", lambda connection, _: closed.append(connection))
    used, idle = engine.raw_connection(), engine.raw_connection()
    of_used, of_idle = used.dbapi_connection, idle.dbapi_connection
    idle.close()

    renew_pool(engine)

    assert closed == [of_idle]
    used.close()
    assert closed == [of_idle, of_used]
    engine.dispose()


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
