"""Locks inside a session, where the two servers differ or NULL comes in."""

import threading
import time
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection

from conquiet.db import AdvisoryLock, DbSession, RowLock
from conquiet.db.locking.naming import lock_name
from conquiet.errors import ConflictError, ConquietError, LockTimeoutError, NoSuchRowError


def test_a_row_lock_finds_null(engine: Engine, admin: Connection) -> None:
    admin.execute(text("INSERT INTO orders (id, email, id_value) VALUES (1, NULL, 5), (2, 'a', 5), (3, NULL, NULL)"))

    def locked(**where: Any) -> list[int]:
        with DbSession(engine) as session:
            return [row["id"] for row in RowLock(session, "orders", where).acquire()]

    assert locked(id=1, email=None) == [1]
    assert locked(email=None) == [1, 3]
    assert locked(email="a", id_value=5) == [2]
    assert locked(email=None, id_value=None) == [3]
    with pytest.raises(NoSuchRowError):
        locked(id=2, email=None)


def test_a_fraction_of_a_second_is_waited_for(engine: Engine, admin: Connection) -> None:
    """MySQL would round 0.3 to 0 and not wait at all."""
    admin.execute(text("SELECT GET_LOCK(:n, 0)"), {"n": lock_name("conquiet_key", "k")})

    with DbSession(engine) as session:
        started = time.monotonic()
        with pytest.raises(LockTimeoutError) as caught:
            AdvisoryLock(session, "k", timeout_s=0.3).acquire()
        assert time.monotonic() - started >= 0.3
        with pytest.raises(LockTimeoutError):
            AdvisoryLock(session, "k", timeout_s=0).acquire()
    assert (caught.value.waited_s or 0) >= 0.3


def test_a_deadlock_of_advisory_locks_lets_no_second_half_through(engine: Engine, admin: Connection) -> None:
    """The loser gets an error and can only roll back; the winner completes. On MySQL both may lose."""
    both = threading.Barrier(2)
    met: dict[int, list[type[ConquietError]]] = {10: [], 20: []}

    def work(first: str, second: str, id_value: int) -> None:
        try:
            with DbSession(engine) as session:
                session.execute("INSERT INTO orders (id) VALUES (:id)", {"id": id_value})
                AdvisoryLock(session, first).acquire()
                both.wait(60)
                try:
                    AdvisoryLock(session, second).acquire()
                except ConquietError as error:
                    met[id_value].append(type(error))
                session.execute("INSERT INTO orders (id) VALUES (:id)", {"id": id_value + 1})
        except ConquietError as error:
            met[id_value].append(type(error))

    threads = [threading.Thread(target=work, args=args) for args in (("a", "b", 10), ("b", "a", 20))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    ids = sorted(admin.execute(text("SELECT id FROM orders")).scalars())
    losers = [id_value for id_value, errors in met.items() if errors]
    assert losers
    assert all(met[loser] == [ConflictError, ConflictError] for loser in losers), "the fault itself, also at the end"
    assert ids == [row for winner in sorted(met.keys() - set(losers)) for row in (winner, winner + 1)]
