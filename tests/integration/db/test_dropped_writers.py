"""A writer that nobody closed: its connections and its engine go with it."""

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
from conquiet.db.connections import connections_of
from conquiet.testing import wait_until


def insert(id_value: int) -> DbOperation:
    return DbOperation("orders", DbOperationType.INSERT, id_value, {"id": id_value})


@pytest.fixture
def connected(admin: Connection, db_url: str) -> Callable[[], int]:
    """How many connections to this test's database the server has."""
    counting = text("SELECT COUNT(*) FROM information_schema.processlist WHERE db = :db AND id <> CONNECTION_ID()")
    return lambda: admin.execute(counting, {"db": make_url(db_url).database}).scalar() or 0


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


def test_connections_stay_until_the_last_writer_is_dropped_or_closed(engine: Engine) -> None:
    first, second = (DbWriter(engine, DbConfig("orders")) for _ in range(2))
    first.execute(insert(1))
    second.execute(insert(2))
    third = DbWriter(engine, DbConfig("orders"))
    third.execute(insert(3))

    del first
    gc.collect()
    third.close()
    del third
    gc.collect()
    assert "Connections in pool: 1" in connections_of(engine).pool_status

    del second
    gc.collect()
    assert connections_of(engine).pool_status == "not opened"


def test_a_writer_that_a_forked_child_drops_says_no_goodbye_in_the_parents_name(
    engine: Engine, admin: Connection
) -> None:
    writers = [DbWriter(engine, DbConfig("orders"))]
    writers[0].execute(insert(1))

    def child() -> None:
        writers.clear()
        gc.collect()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)

    assert process.exitcode == 0
    writers[0].execute(insert(2))  # on the same connection
    assert admin.execute(text("SELECT COUNT(*) FROM orders")).scalar() == 2
