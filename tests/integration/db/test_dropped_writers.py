"""A writer dropped without close(): its connections and its engine are collected with it."""

import gc
import multiprocessing
import os
import weakref
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbWriter
from conquiet.db.writer_pool import writer_pool_of
from conquiet.testing import wait_until


def insert(id_value: int) -> DbOperation:
    return DbOperation("orders", DbOperationType.INSERT, id_value, {"id": id_value})


@pytest.fixture
def connected(admin: Connection, db_url: str) -> Callable[[], int]:
    """Return the number of connections to this test's database."""
    counting = text("SELECT COUNT(*) FROM information_schema.processlist WHERE db = :db AND id <> CONNECTION_ID()")
    return lambda: admin.execute(counting, {"db": make_url(db_url).database}).scalar() or 0


# The engine goes as one circle. Whether the collector comes to the driver's connection first, which closes its socket,
# or to the socket, which warns, depends on when it last ran.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_dropped_writer_keeps_neither_connections_nor_its_engine(
    engine: Engine, driver: str, connected: Callable[[], int]
) -> None:
    engine.dispose()
    wait_until(lambda: connected() == 0)

    def use_and_forget() -> "weakref.ref[Engine]":
        own = create_engine(engine.url.set(drivername=f"mysql+{driver}"))
        DbWriter(own, DbConfig("orders")).execute(insert(1))
        return weakref.ref(own)

    engines = [use_and_forget() for _ in range(3)]
    gc.collect()

    assert [made() for made in engines] == [None] * 3
    wait_until(lambda: connected() == 0)


def test_connections_are_closed_with_the_last_writer_not_with_dropped_ones(engine: Engine) -> None:
    """A writer made for each operation must not cost a connection each."""
    for number in range(3):
        DbWriter(engine, DbConfig("orders")).execute(insert(number))
        gc.collect()
    assert "Connections in pool: 1" in writer_pool_of(engine).pool_status

    first, second = (DbWriter(engine, DbConfig("orders")) for _ in range(2))
    first.execute(insert(10))
    second.execute(insert(11))
    first.close()
    assert "Connections in pool: 1" in writer_pool_of(engine).pool_status

    second.close()
    assert writer_pool_of(engine).pool_status == "not opened"


def test_a_writer_for_each_operation_shares_one_connection(
    engine: Engine, admin: Connection, connected: Callable[[], int]
) -> None:
    def made() -> int:
        _, count = admin.execute(text("SHOW GLOBAL STATUS LIKE 'Connections'")).one()
        return int(count)

    DbWriter(engine, DbConfig("orders")).execute(insert(0))
    before = made()
    for number in range(1, 20):
        DbWriter(engine, DbConfig("orders")).execute(insert(number))

    assert made() - before < 5  # others may connect to a shared server meanwhile; a reconnect each would be 19


def test_a_writer_dropped_by_a_forked_child_closes_no_parent_connection(engine: Engine, admin: Connection) -> None:
    writers = [DbWriter(engine, DbConfig("orders"))]
    writers[0].execute(insert(1))

    def child() -> None:
        writers.clear()
        gc.collect()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)

    assert process.exitcode == 0
    writers[0].execute(insert(2))  # on the same connection
    assert admin.execute(text("SELECT COUNT(*) FROM orders")).scalar() == 2
