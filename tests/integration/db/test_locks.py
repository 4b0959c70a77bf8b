"""Locks on real servers: waits, errors, and no lock that stays."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import (
    AdvisoryLock,
    DbOperation,
    DbOperationType,
    DbSession,
    DbWriter,
    LockStrategy,
    RowLock,
    insert_idempotent,
    occ_update,
    retry_on_conflict,
)
from conquiet.db.locking import (
    LockBackend,
    MySQLAdvisoryLockBackend,
    MySQLRowLockBackend,
    MySQLTableLockBackend,
    make_lock_backend,
)
from conquiet.db.locking.naming import lock_name, row_lock_name
from conquiet.errors import (
    ConfigurationError,
    ConflictError,
    DbWriteError,
    LifecycleError,
    LockAcquisitionError,
    LockedWriteError,
    LockTimeoutError,
    NoSuchRowError,
)
from conquiet.testing import wait_until

UPDATE = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 5})
IMPATIENT = {"connect_args": {"init_command": "SET innodb_lock_wait_timeout = 1"}}


@pytest.fixture
def row(engine: Engine) -> int:
    DbWriter(engine, DbConfig("orders")).execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1}))
    return 1


def held(admin: Connection, name: str) -> int | None:
    answer: int | None = admin.execute(text("SELECT IS_USED_LOCK(:name)"), {"name": name}).scalar()
    return answer


def name_of(engine: Engine) -> str:
    return row_lock_name("conquiet_lock", "orders", 1, default_schema=engine.url.database)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


# ------------------------------------------------------------------ backends
@pytest.mark.spec("CQ-005.17", "CQ-005.18", "CQ-005.21", "CQ-005.22", "CQ-005.24", "CQ-008.2")
def test_the_advisory_lock_is_held_by_the_connection_it_was_taken_on(engine: Engine, admin: Connection) -> None:
    backend = MySQLAdvisoryLockBackend()
    with engine.connect() as conn:
        backend.acquire(conn, UPDATE)
        assert held(admin, name_of(engine)) == conn.execute(text("SELECT CONNECTION_ID()")).scalar()

        backend.release(conn, UPDATE)
        assert held(admin, name_of(engine)) is None
        assert not conn.invalidated


def test_a_release_of_what_is_not_held_closes_the_connection(engine: Engine) -> None:
    """Something is wrong with this connection; in the pool it might block all others."""
    with engine.connect() as conn:
        MySQLAdvisoryLockBackend().release(conn, UPDATE)
        assert conn.invalidated
        MySQLAdvisoryLockBackend().release(conn, UPDATE)  # on a closed connection: nothing to do, and no reconnect
        MySQLTableLockBackend().release(conn, UPDATE)
        assert conn.invalidated


def test_unlocking_that_fails_closes_the_connection(engine: Engine, admin: Connection) -> None:
    with engine.connect() as conn:
        MySQLTableLockBackend().acquire(conn, UPDATE)
        admin.execute(text(f"KILL {conn.execute(text('SELECT CONNECTION_ID()')).scalar()}"))

        MySQLTableLockBackend().release(conn, UPDATE)

        assert conn.invalidated


@pytest.mark.spec("CQ-005.18", "CQ-005.26", "CQ-005.28", "CQ-008.2")
def test_the_row_lock_lasts_until_the_transaction_ends(
    make_engine: Callable[..., Engine], engine: Engine, row: int
) -> None:
    backend, impatient = MySQLRowLockBackend(), make_engine(str(engine.url), **IMPATIENT)
    with engine.connect() as first, impatient.connect() as second:
        backend.acquire(first, UPDATE)
        backend.release(first, UPDATE)  # does nothing: the transaction continues
        with pytest.raises(LockTimeoutError, match="row lock on orders"):
            backend.acquire(second, UPDATE)

        first.rollback()
        second.rollback()
        backend.acquire(second, UPDATE)


@pytest.mark.spec("CQ-005.27")
def test_a_missing_row_cannot_be_locked_and_the_backend_says_so(engine: Engine) -> None:
    """The seed relies on a gap lock here. Both servers grant it twice, so it would exclude no writer."""
    backend = MySQLRowLockBackend()
    with engine.connect() as first, engine.connect() as second:
        for conn in (first, second):  # the second does not wait for the first
            with pytest.raises(NoSuchRowError, match="no such row in orders"):
                backend.acquire(conn, UPDATE)


@pytest.mark.spec("CQ-005.18", "CQ-005.29", "CQ-005.30", "CQ-008.2")
def test_the_table_lock_excludes_all_others_until_released(engine: Engine, admin: Connection, row: int) -> None:
    backend = MySQLTableLockBackend()
    admin.execute(text("SET SESSION lock_wait_timeout = 1"))
    with engine.connect() as conn:
        backend.acquire(conn, UPDATE)
        with pytest.raises(Exception, match="1205"):
            admin.execute(text("SELECT * FROM orders"))

        conn.commit()
        backend.release(conn, UPDATE)
        assert admin.execute(text("SELECT COUNT(*) FROM orders")).scalar() == 1


# ------------------------------------------------------------------ out of the writer
def blocked(writer: DbWriter) -> LockedWriteError:
    """Try to update row 1 under a lock that another connection holds, with a wait of one second."""
    for backend in getattr(writer.lock_backend, "backends", [writer.lock_backend]):
        for name in ("lock_timeout", "lock_timeout_s"):
            if hasattr(backend, name):
                setattr(backend, name, 1)
    with pytest.raises(LockedWriteError) as caught:
        writer.execute(UPDATE)
    return caught.value


@pytest.fixture
def metadata_locks(admin: Connection) -> Iterator[None]:
    """MariaDB shows the users of a table only through a plugin, which comes with the server and is not loaded."""
    if "MariaDB" not in str(admin.execute(text("SELECT VERSION()")).scalar()):
        yield
        return
    admin.execute(text("INSTALL SONAME 'metadata_lock_info'"))
    yield
    admin.execute(text("UNINSTALL SONAME 'metadata_lock_info'"))


@pytest.mark.spec("CQ-005.23", "CQ-005.46", "CQ-005.48", "CQ-005.49", "CQ-005.50", "CQ-003.4", "CQ-003.5")
@pytest.mark.parametrize("strategy", [strategy for strategy in LockStrategy if strategy is not LockStrategy.NONE])
def test_a_lock_timeout_is_both_kinds_of_error_counted_and_explained(
    make_engine: Callable[..., Engine],
    engine: Engine,
    admin: Connection,
    row: int,
    strategy: LockStrategy,
    metadata_locks: None,
) -> None:
    failures = sample("conquiet_db_lock_failures_total", strategy=strategy.value)
    timed = sample("conquiet_db_lock_acquire_latency_seconds_count", strategy=strategy.value)
    updates = {"table": "orders", "op_type": "update"}
    failed = sample("conquiet_db_write_total", status="error", **updates)
    written = sample("conquiet_db_write_latency_seconds_count", **updates)
    holder: LockBackend | None = make_lock_backend(strategy, DbConfig("orders"))
    assert holder is not None
    writer = DbWriter(make_engine(str(engine.url), **IMPATIENT), DbConfig("orders"), strategy)
    with engine.connect() as conn:
        thread = conn.execute(text("SELECT CONNECTION_ID()")).scalar()
        conn.rollback()
        holder.acquire(conn, UPDATE)

        error = blocked(writer)

        conn.rollback()
        holder.release(conn, UPDATE)
    assert sample("conquiet_db_write_total", status="error", **updates) == failed + 1
    assert sample("conquiet_db_write_latency_seconds_count", **updates) == written + 1
    assert isinstance(error, DbWriteError)
    assert isinstance(error, LockAcquisitionError)
    assert error.__cause__ is not None
    assert (error.table, error.operation) == ("orders", "update")
    assert error.waited_s is not None
    assert 0.5 < error.waited_s < 10
    assert f"held by connection {thread}, root@" in str(error)
    assert error.holder is not None
    assert writer.execute(UPDATE).rows == 1  # the connection returned to the pool intact
    assert writer.execute(replace(UPDATE, id_value=404)).rows == 0  # a missing row is not a failed lock
    assert writer.modify(1, lambda row: {"amount": row["amount"] + 1}).rows == 1
    assert sample("conquiet_db_lock_failures_total", strategy=strategy.value) == failures + 1
    assert sample("conquiet_db_lock_acquire_latency_seconds_count", strategy=strategy.value) == timed + 4


@pytest.mark.spec("CQ-005.23", "CQ-003.4", "CQ-005.46")
def test_a_killed_wait_is_a_lock_failure_and_not_a_lock(engine: Engine, admin: Connection, row: int) -> None:
    """MariaDB replies NULL, MySQL an error; neither is 1."""
    writer = DbWriter(engine, DbConfig("orders"), LockStrategy.ADVISORY)
    errors: list[BaseException] = []

    def wait_for_the_lock() -> None:
        try:
            writer.execute(UPDATE)
        except DbWriteError as error:
            errors.append(error)

    admin.execute(text("SELECT GET_LOCK(:name, 0)"), {"name": name_of(engine)})
    waiting = threading.Thread(target=wait_for_the_lock)
    waiting.start()
    waiter = wait_until(
        lambda: admin.execute(
            text("SELECT id FROM information_schema.processlist WHERE state LIKE '%lock%' AND db = DATABASE()")
        ).scalar()
    )
    admin.execute(text(f"KILL QUERY {waiter}"))
    waiting.join(60)

    (error,) = errors
    assert any(said in str(error) for said in ("ended the wait", "interrupted the statement"))
    admin.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": name_of(engine)})
    assert writer.execute(UPDATE).rows == 1


def test_an_interrupt_while_the_lock_is_held_frees_it(engine: Engine, admin: Connection, row: int) -> None:
    for strategy in LockStrategy:
        writer = DbWriter(engine, DbConfig("orders"), strategy)

        def interrupted(_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            writer.modify(1, interrupted)
        wait_until(lambda: held(admin, name_of(engine)) is None)
        assert writer.modify(1, lambda row: {"amount": row["amount"] + 1}).rows == 1


# ------------------------------------------------------------------ in a session
@pytest.mark.spec("CQ-005.17", "CQ-005.24")
def test_an_advisory_lock_lives_until_after_the_commit(engine: Engine, admin: Connection, row: int) -> None:
    name = lock_name("conquiet_key", "account 7")
    committed_under_lock: list[Any] = []

    def check(_: Connection) -> None:
        amount = admin.execute(text("SELECT amount FROM orders")).scalar()
        committed_under_lock.append((amount, held(admin, name) is not None))

    with DbSession(engine) as session:
        with AdvisoryLock(session, "account 7"):
            session.execute("UPDATE orders SET amount = 5")
        AdvisoryLock(session, "account 7").acquire()  # re-entrant: two gets, two releases
        session.on_close(check)
        assert held(admin, name) is not None

    assert committed_under_lock == [(5, True)]
    assert held(admin, name) is None


@pytest.mark.spec("CQ-005.24")
def test_no_lock_survives_a_session_on_a_pooled_connection(
    make_engine: Callable[..., Engine], engine: Engine, admin: Connection
) -> None:
    """ROLLBACK frees no advisory lock; a pooled connection with one blocks all others until it is closed."""
    single = make_engine(str(engine.url), pool_size=1, max_overflow=0)
    name = lock_name("conquiet_key", "k")
    connection_ids = []
    for error in (RuntimeError, KeyboardInterrupt, None):
        with suppress(RuntimeError, KeyboardInterrupt), DbSession(single) as session:
            AdvisoryLock(session, "k").acquire()
            connection_ids.append(session.execute_scalar("SELECT CONNECTION_ID()"))
            if error is not None:
                raise error
        if error is KeyboardInterrupt:  # the connection was closed; the server notices that on its own time
            wait_until(lambda: held(admin, name) is None)
        assert held(admin, name) is None
    failed, interrupted, committed = connection_ids
    assert failed == interrupted, "returned after a rollback, not closed"
    assert interrupted != committed, "after an interrupt a reply may still be on its way"


@pytest.mark.spec("CQ-005.23", "CQ-005.50", "CQ-003.5", "CQ-001.12")
def test_an_advisory_lock_timeout_leaves_the_session_usable(engine: Engine, admin: Connection) -> None:
    timed = sample("conquiet_db_lock_acquire_latency_seconds_count", strategy="advisory")
    admin.execute(text("SELECT GET_LOCK(:n, 0)"), {"n": lock_name("conquiet_key", "k")})
    failures = sample("conquiet_db_lock_failures_total", strategy="advisory")

    with DbSession(engine) as session:
        AdvisoryLock(session, "free").acquire()
        with pytest.raises(
            LockTimeoutError, match=r"advisory lock 'k' could not be acquired .*held by connection"
        ) as caught:
            AdvisoryLock(session, "k", timeout_s=0).acquire()
        assert session.execute("INSERT INTO orders (id) VALUES (1)") == 1
    assert caught.value.holder is not None
    assert caught.value.resource == lock_name("conquiet_key", "k")
    assert sample("conquiet_db_lock_failures_total", strategy="advisory") == failures + 1
    assert sample("conquiet_db_lock_acquire_latency_seconds_count", strategy="advisory") == timed + 2


@pytest.mark.spec("CQ-005.50", "CQ-003.5", "CQ-001.12")
def test_a_row_lock_returns_the_newest_state_and_shuts_others_out(engine: Engine, admin: Connection, row: int) -> None:
    failures = sample("conquiet_db_lock_failures_total", strategy="row")
    timed = sample("conquiet_db_lock_acquire_latency_seconds_count", strategy="row")
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT amount FROM orders") == 0  # pins the snapshot
        admin.execute(text("UPDATE orders SET amount = 7"))
        assert session.execute_scalar("SELECT amount FROM orders") == 0

        (locked,) = RowLock(session, "orders", {"id": 1, "status": "new"}).acquire()

        assert locked["amount"] == 7
        with pytest.raises(LockTimeoutError), DbSession(engine) as other:
            RowLock(other, "orders", {"id": 1}, nowait=True).acquire()
        with DbSession(engine) as other:
            assert RowLock(other, "orders", {"id": 1}, skip_locked=True).acquire() == []
        assert sample("conquiet_db_lock_failures_total", strategy="row") == failures + 1
        assert sample("conquiet_db_lock_acquire_latency_seconds_count", strategy="row") == timed + 3
    with DbSession(engine) as session:
        with pytest.raises(NoSuchRowError):
            RowLock(session, "orders", {"id": 404}).acquire()
        for where, options in (({}, {}), ({"id": 1}, {"nowait": True, "skip_locked": True}), ({"i`d": 1}, {})):
            with pytest.raises(ConfigurationError):
                RowLock(session, "orders", where, **options)


def test_a_row_lock_that_was_not_acquired_ends_the_session(engine: Engine, row: int) -> None:
    with DbSession(engine) as session:
        RowLock(session, "orders", {"id": 1}).acquire()
        with pytest.raises(ConflictError), DbSession(engine) as other:  # noqa: PT012 - leaving raises
            other.execute("INSERT INTO orders (id) VALUES (2)")
            with pytest.raises(LockTimeoutError):
                RowLock(other, "orders", {"id": 1}, nowait=True).acquire()
            with pytest.raises(LifecycleError):
                other.execute("INSERT INTO orders (id) VALUES (3)")
        assert session.execute_scalar("SELECT COUNT(*) FROM orders") == 1


@pytest.mark.spec("QC-001.20")
def test_the_loser_of_a_deadlock_cannot_commit_its_second_half(engine: Engine, admin: Connection) -> None:
    """The server has rolled the first half back. Continuing would commit the rest alone."""
    admin.execute(text("INSERT INTO orders (id) VALUES (1), (2)"))
    barrier = threading.Barrier(2, timeout=60)
    outcomes: list[str] = []

    def cross(first: int, second: int) -> None:
        try:
            with DbSession(engine) as session:
                session.execute("UPDATE orders SET amount = amount + 1 WHERE id = :id", {"id": first})
                barrier.wait()
                try:
                    session.execute("UPDATE orders SET amount = amount + 1 WHERE id = :id", {"id": second})
                except ConflictError:
                    with pytest.raises(LifecycleError):
                        session.execute("UPDATE orders SET amount = amount + 100 WHERE id = :id", {"id": second})
            outcomes.append("committed")
        except ConflictError as error:
            outcomes.append(f"conflict {error.errno}")

    threads = [threading.Thread(target=cross, args=args) for args in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(outcomes) == ["committed", "conflict 1213"]
    assert admin.execute(text("SELECT amount FROM orders ORDER BY id")).scalars().all() == [1, 1]


def test_optimistic_updates_conflict_on_a_stale_version_and_a_retry_wins(
    engine: Engine, admin: Connection, row: int
) -> None:
    attempts: list[int] = []

    def raise_by_one(session: DbSession) -> int:
        found = session.fetch_one("SELECT amount, version FROM orders WHERE id = 1")
        assert found is not None
        attempts.append(found["version"])
        if len(attempts) == 1:
            admin.execute(text("UPDATE orders SET amount = 10, version = version + 1"))
        return occ_update(session, "orders", 1, {"amount": found["amount"] + 1}, expected_version=found["version"])

    assert retry_on_conflict(engine, raise_by_one, sleep=lambda _: None) == 3
    assert attempts == [1, 2]
    assert admin.execute(text("SELECT amount FROM orders")).scalar() == 11


@pytest.mark.spec("CQ-005.2", "CQ-005.10", "CQ-005.12")
def test_an_idempotent_insert_sees_a_row_that_its_snapshot_does_not(
    engine: Engine, admin: Connection, row: int
) -> None:
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT COUNT(*) FROM orders") == 1  # pins the snapshot
        admin.execute(text("INSERT INTO orders (id, email) VALUES (2, 'taken')"))

        assert insert_idempotent(session, "orders", 2, {"amount": 5}) is False
        assert insert_idempotent(session, "orders", 3, {"amount": 5}) is True
        with pytest.raises(DbWriteError, match="not in the requested row"):
            insert_idempotent(session, "orders", 4, {"email": "taken"})
    assert set(admin.execute(text("SELECT id FROM orders")).scalars()) == {1, 2, 3}
