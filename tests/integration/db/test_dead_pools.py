"""Connections that died together, in the pool: one write finds out, and the others are spared."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import DbWriter, LockStrategy
from conquiet.errors import DbWriteError


@pytest.mark.parametrize("strategy", [LockStrategy.ROW, LockStrategy.ADVISORY, LockStrategy.ADVISORY_AND_ROW])
def test_dead_connections_of_a_pool_cost_one_write_together(
    engine: Engine, admin: Connection, db_url: str, strategy: LockStrategy
) -> None:
    admin.execute(text("INSERT INTO orders (id) VALUES (1), (2), (3)"))
    writer = DbWriter(engine, DbConfig("orders"), strategy)
    engine.dispose()
    all_there = threading.Barrier(3)

    def together(_: Any) -> dict[str, Any]:
        all_there.wait(60)
        return {"amount": 1}

    with ThreadPoolExecutor(3) as threads:  # so that there are three connections
        list(threads.map(lambda row: writer.modify(row, together), (1, 2, 3)))
    found = admin.execute(
        text("SELECT id FROM information_schema.processlist WHERE db = :db AND id <> CONNECTION_ID()"),
        {"db": make_url(db_url).database},
    )
    killed = [admin.execute(text(f"KILL {row.id}")) for row in found.all()]

    failed = 0
    for row in (1, 2, 3):
        try:
            writer.modify(row, lambda _: {"amount": 2})
        except DbWriteError:
            failed += 1

    assert len(killed) == 3
    assert failed == 1
