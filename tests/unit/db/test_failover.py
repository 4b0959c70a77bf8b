"""Which refusals mean that a server was demoted, and what becomes of its connections, without a server."""

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


def test_a_renewed_pool_closes_idle_connections_and_lends_no_used_one_again(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}", poolclass=QueuePool)
    closed: list[object] = []
    used, idle = engine.raw_connection(), engine.raw_connection()
    of_used, of_idle = used.dbapi_connection, idle.dbapi_connection
    event.listen(engine, "close", lambda connection, _: closed.append(connection))
    idle.close()

    renew_pool(engine)
    assert closed == [of_idle]
    used.close()
    with engine.connect() as fresh:
        assert fresh.connection.dbapi_connection not in {of_idle, of_used}
    assert closed == [of_idle]
    engine.dispose()
    assert of_used is not None
    of_used.close()
