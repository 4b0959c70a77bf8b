"""One row under several names, and transactions older than the lock: ``modify`` loses nothing to either."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import DbWriter, LockStrategy
from conquiet.db.locking.naming import canonical_id
from conquiet.testing import wait_until

LOCKED = [strategy for strategy in LockStrategy if strategy is not LockStrategy.NONE]


@pytest.mark.spec("CQ-005.16")
@pytest.mark.parametrize("strategy", LOCKED)
def test_modify_reads_the_newest_state_in_an_older_transaction(
    make_engine: Callable[..., Engine], engine: Engine, admin: Connection, strategy: LockStrategy
) -> None:
    """A listener on the pool that reads a table begins the transaction, and with it a snapshot."""
    admin.execute(text("INSERT INTO orders (id, amount) VALUES (1, 0)"))
    listening = make_engine(str(engine.url))

    @event.listens_for(listening, "connect")
    def _look(raw: Any, _record: object) -> None:
        cursor = raw.cursor()
        cursor.execute("SELECT COUNT(*) FROM orders")
        cursor.fetchall()
        cursor.close()
        admin.execute(text("UPDATE orders SET amount = amount + 10"))  # another connection, right after the snapshot

    DbWriter(listening, DbConfig("orders"), strategy).modify(1, lambda row: {"amount": row["amount"] + 1})

    opened = (admin.execute(text("SELECT amount FROM orders")).scalar() or 0) // 10
    assert opened > 0
    assert admin.execute(text("SELECT amount FROM orders")).scalar() == 10 * opened + 1


@pytest.mark.spec("CQ-005.16")
def test_modify_loses_nothing_where_one_row_has_two_lock_names(engine: Engine, admin: Connection) -> None:
    """The collation decides which spellings are one id. Here it equates ß and one s, and the lock names do not."""
    one, other = "straße", "strase"
    assert canonical_id(one) != canonical_id(other)
    admin.execute(
        text("CREATE TABLE streets (id VARCHAR(50) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT) CHARSET utf8mb4")
    )
    admin.execute(text("INSERT INTO streets VALUES (:id, 0)"), {"id": one})
    writer = DbWriter(engine, DbConfig("streets"), LockStrategy.ADVISORY)
    asked = threading.Event()

    def more(row: Mapping[str, Any]) -> dict[str, Any]:
        asked.set()
        return {"n": row["n"] + 1}

    second = threading.Thread(target=writer.modify, args=(other, more))

    def slowly(row: Mapping[str, Any]) -> dict[str, Any]:
        second.start()
        waiting = text("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
        # The view is refreshed only if it was not queried for a tenth of a second.
        wait_until(lambda: asked.is_set() or bool(admin.execute(waiting).scalar()), interval_s=0.2)
        return {"n": row["n"] + 1}

    writer.modify(one, slowly)
    second.join()

    assert admin.execute(text("SELECT n FROM streets")).scalars().all() == [2]


def test_an_id_that_looks_like_a_huge_number_can_be_locked(engine: Engine, admin: Connection) -> None:
    admin.execute(text("CREATE TABLE digests (id VARCHAR(50) PRIMARY KEY, n INT)"))
    admin.execute(text("INSERT INTO digests VALUES ('3e12345678901234', 0)"))

    DbWriter(engine, DbConfig("digests"), LockStrategy.ADVISORY).modify("3e12345678901234", lambda _: {"n": 1})

    assert admin.execute(text("SELECT n FROM digests")).scalar() == 1
