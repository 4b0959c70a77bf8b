"""Timeouts of table and advisory locks, on real servers."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbWriter, LockStrategy
from conquiet.db.locking import MySQLAdvisoryLockBackend, MySQLTableLockBackend
from conquiet.errors import LockAcquisitionError

UPDATE = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 1})


def test_a_new_table_lock_timeout_replaces_the_connections_old_one(
    engine: Engine, statements: Callable[[], list[str]]
) -> None:
    writer = DbWriter(engine, DbConfig("orders"), LockStrategy.TABLE, lock_timeout_s=3)
    writer.execute(UPDATE)
    writer.lock_backend = MySQLTableLockBackend(lock_timeout_s=1)
    writer.execute(UPDATE)

    waits = [sent.rpartition("= ")[2] for sent in statements() if "lock_wait_timeout" in sent]
    assert waits == ["3", "1"]


def test_a_fraction_of_a_second_is_rounded_up_for_a_table_lock(
    engine: Engine, statements: Callable[[], list[str]]
) -> None:
    """The servers reject a fraction."""
    DbWriter(engine, DbConfig("orders"), LockStrategy.TABLE, lock_timeout_s=2.5).execute(UPDATE)

    assert [sent.rpartition("= ")[2] for sent in statements() if "lock_wait_timeout" in sent] == ["3"]


def test_an_assigned_advisory_lock_waits_as_long_as_it_says(engine: Engine, admin: Connection) -> None:
    writer = DbWriter(engine, DbConfig("orders"), LockStrategy.ADVISORY, lock_timeout_s=60)
    backend = MySQLAdvisoryLockBackend(lock_timeout=1, prefix="mine")
    writer.lock_backend = backend
    admin.execute(text("DO GET_LOCK(:name, 0)"), {"name": backend._lock_name(admin, UPDATE)})

    with pytest.raises(LockAcquisitionError, match="within 1 s"):
        writer.execute(UPDATE)
