"""Connections of writers on SQLite, where all share one."""

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool
from tests.unit.db.operations import insert, rows

from conquiet.config import DbConfig
from conquiet.db import DbSession, DbWriter
from conquiet.errors import DbWriteError


@pytest.mark.parametrize("pool", [SingletonThreadPool, StaticPool])
def test_a_write_during_an_open_transaction_on_the_only_connection_is_refused(pool: type[Pool]) -> None:
    """SQLite in memory: our COMMIT would commit the session's half, our ROLLBACK would lose it."""
    engine = create_engine("sqlite://", poolclass=pool)
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)"))
    writer = DbWriter(engine, DbConfig("orders"))

    with DbSession(engine) as session:
        session.execute("INSERT INTO orders (id) VALUES (1)")
        for attempt in (
            lambda: writer.execute(insert(2)),
            lambda: writer.execute_many([insert(2), insert(3)]),
            lambda: writer.modify(1, lambda _: {"amount": 1}),
        ):
            with pytest.raises(DbWriteError, match=r"on orders failed: .* transaction is open on it; end that first"):
                attempt()
        session.execute("INSERT INTO orders (id) VALUES (4)")
    assert set(rows(engine)) == {1, 4}

    with pytest.raises(ZeroDivisionError), DbSession(engine) as session:  # noqa: PT012 - the block is the session's
        session.execute("INSERT INTO orders (id) VALUES (5)")
        with pytest.raises(DbWriteError):
            writer.execute(insert(6))
        _ = 1 / 0
    writer.execute(insert(7))
    assert set(rows(engine)) == {1, 4, 7}
    engine.dispose()
