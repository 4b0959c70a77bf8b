"""DbSession on PostgreSQL: one transaction, errors by SQLSTATE, and the fate of a COMMIT."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from conquiet.config import DbConfig
from conquiet.db import DbSession, DbWriter, LockStrategy, insert_idempotent, occ_update, retry_on_conflict
from conquiet.db.locks import AdvisoryLock, RowLock
from conquiet.errors import (
    ConfigurationError,
    ConflictError,
    DatabaseUnavailableError,
    DbWriteError,
    InfrastructureError,
    LifecycleError,
)
from conquiet.testing import FaultProxy, PostgresServer, wait_until

INSERT = "INSERT INTO orders (id, amount) VALUES (:id, 1)"
Count = Callable[[], int]
MakeEngine = Callable[..., Engine]


def waiting(engine: Engine) -> int:
    """Return how many transactions wait for another.

    A separate transaction each time: one would see one state throughout.
    """
    with engine.connect() as connection:
        return int(
            connection.execute(
                text(
                    "SELECT COUNT(*) FROM pg_stat_activity "
                    "WHERE wait_event = 'transactionid' AND datname = current_database()"
                )
            ).scalar_one()
        )


@pytest.mark.spec("QC-001.13", "QC-001.14", "QC-001.18")
def test_a_block_is_one_transaction(engine: Engine, count: Count) -> None:
    with DbSession(engine) as session:
        assert session.execute(INSERT, {"id": 1}) == 1
        assert session.fetch_one("SELECT amount FROM orders WHERE id = :id", {"id": 1}) == {"amount": 1}
        assert count() == 0
    assert count() == 1

    with pytest.raises(RuntimeError), DbSession(engine) as session:  # noqa: PT012
        session.execute(INSERT, {"id": 2})
        raise RuntimeError
    assert count() == 1


# ------------------------------------------------------------------ errors
@pytest.mark.spec("QC-001.16", "QC-001.20")
def test_an_error_that_was_caught_still_stops_the_commit(engine: Engine, count: Count) -> None:
    """PostgreSQL replies to COMMIT after a failed statement with ROLLBACK, and without an error."""
    with pytest.raises(DbWriteError) as caught, DbSession(engine) as session:  # noqa: PT012 - one transaction
        session.execute(INSERT, {"id": 1})
        with pytest.raises(DbWriteError):
            session.execute(INSERT, {"id": 1})

    assert caught.value.sqlstate == "23505"
    assert count() == 0


def test_an_error_on_the_connection_itself_stops_the_commit_too(engine: Engine, count: Count) -> None:
    with pytest.raises(DbWriteError, match="savepoint"), DbSession(engine) as session:  # noqa: PT012
        session.execute(INSERT, {"id": 1})
        with pytest.raises(IntegrityError):
            session.connection.execute(text("INSERT INTO orders (id) VALUES (1)"))

    assert count() == 0


def test_a_statement_after_a_failed_one_is_explained(engine: Engine) -> None:
    with pytest.raises(DbWriteError, match="earlier statement"), DbSession(engine) as session:  # noqa: PT012
        with pytest.raises(DbWriteError):
            session.execute("SELECT 1 / 0")
        session.execute(INSERT, {"id": 1})


def test_a_savepoint_keeps_the_transaction_usable(engine: Engine, count: Count) -> None:
    with DbSession(engine) as session:
        session.execute(INSERT, {"id": 1})
        with pytest.raises(IntegrityError), session.connection.begin_nested():
            session.connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        session.execute(INSERT, {"id": 2})

    assert count() == 2


@pytest.mark.spec("QC-001.18")
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END", "ABORT", "PREPARE TRANSACTION 'x'"])
def test_statements_that_end_the_transaction_are_not_sent(engine: Engine, count: Count, statement: str) -> None:
    with pytest.raises(LifecycleError, match="not allowed"), DbSession(engine) as session:  # noqa: PT012
        session.execute(INSERT, {"id": 1})
        session.execute(statement)

    assert count() == 0


def wait_for(event: threading.Event) -> None:
    assert event.wait(30)


@pytest.mark.spec("QC-001.20")
def test_a_deadlock_is_a_conflict_that_a_new_session_may_retry(engine: Engine, count: Count) -> None:
    """The victim retries once the other one has committed.

    If it retried immediately, it could lock its row again before PostgreSQL has woken the other one, and cause a second
    deadlock.
    """
    with DbSession(engine) as session:
        session.execute(INSERT, [{"id": 1}, {"id": 2}])
    both = threading.Barrier(2, timeout=30)
    committed = threading.Event()
    attempts: list[int] = []

    def move(first: int, second: int) -> None:
        def work(session: DbSession) -> None:
            attempts.append(first)
            session.execute("UPDATE orders SET amount = amount + 1 WHERE id = :id", {"id": first})
            if len(attempts) <= 2:
                both.wait()
            session.execute("UPDATE orders SET amount = amount + 1 WHERE id = :id", {"id": second})

        retry_on_conflict(engine, work, sleep=lambda _: wait_for(committed))
        committed.set()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(move, 1, 2), pool.submit(move, 2, 1)]:
            done.result(60)

    assert len(attempts) == 3
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT SUM(amount) FROM orders") == 6


def test_a_serialization_failure_at_commit_is_a_conflict_and_not_unknown(
    engine: Engine, make_engine: MakeEngine, postgres_url: str
) -> None:
    """Two transactions that each count the rows and insert one: write skew, found by the second COMMIT."""
    strict = make_engine(postgres_url, isolation_level="SERIALIZABLE")
    with pytest.raises(ConflictError) as caught, DbSession(strict) as late:  # noqa: PT012
        late.execute_scalar("SELECT COUNT(*) FROM orders")
        late.execute(INSERT, {"id": 1})
        with DbSession(strict) as early:
            early.execute_scalar("SELECT COUNT(*) FROM orders")
            early.execute(INSERT, {"id": 2})

    assert caught.value.sqlstate == "40001"


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [("SELECT id FROM orders WHERE id = 1 FOR UPDATE NOWAIT", "55P03"), ("SET LOCAL lock_timeout = '50ms'", "55P03")],
    ids=["nowait", "timeout"],
)
def test_a_lock_that_is_held_elsewhere_is_a_conflict(engine: Engine, statement: str, sqlstate: str) -> None:
    with DbSession(engine) as session:
        session.execute(INSERT, {"id": 1})
    with DbSession(engine) as holder:
        holder.execute("UPDATE orders SET amount = 5 WHERE id = 1")
        with pytest.raises(ConflictError) as caught, DbSession(engine) as session:  # noqa: PT012
            session.execute(statement)
            session.execute("UPDATE orders SET amount = 6 WHERE id = 1")

    assert caught.value.sqlstate == sqlstate


def test_a_missing_table_or_column_is_named(engine: Engine) -> None:
    with pytest.raises(DbWriteError, match="no table orderz") as caught, DbSession(engine) as session:
        session.execute("DELETE FROM orderz")
    assert caught.value.sqlstate == "42P01"

    with pytest.raises(DbWriteError, match="no column colour"), DbSession(engine) as session:
        insert_idempotent(session, "orders", 1, {"colour": "red"})


def test_no_value_is_shown_in_an_error(engine: Engine) -> None:
    """PostgreSQL's own text is: Key (email)=(jane@example.org) already exists."""
    with pytest.raises(DbWriteError) as caught, DbSession(engine) as session:  # noqa: PT012
        for number in (1, 2):
            session.execute("INSERT INTO orders (id, email) VALUES (:n, 'jane@example.org')", {"n": number})

    assert "jane" not in str(caught.value)
    assert "23505" in str(caught.value)


# ------------------------------------------------------------------ unavailable
def test_a_wrong_password_schema_or_port_is_unavailable(make_engine: MakeEngine, postgres_url: str) -> None:
    for changed in ({"database": "nowhere"}, {"username": "nobody_here"}, {"port": 1}):
        engine = make_engine(make_url(postgres_url).set(**changed).render_as_string(hide_password=False))
        with pytest.raises(DatabaseUnavailableError) as caught, DbSession(engine):
            pass
        assert isinstance(caught.value, InfrastructureError)


def test_a_backend_that_is_terminated_is_unavailable_before_commit(engine: Engine, count: Count) -> None:
    with pytest.raises(DatabaseUnavailableError), DbSession(engine) as session:  # noqa: PT012
        session.execute(INSERT, {"id": 1})
        with engine.connect() as admin:
            pid = session.execute_scalar("SELECT pg_backend_pid()")
            admin.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        session.execute(INSERT, {"id": 2})

    assert count() == 0
    with DbSession(engine) as session:  # the pool has no dead connection left
        session.execute(INSERT, {"id": 3})


def test_an_idle_transaction_that_the_server_ends_is_unavailable(engine: Engine) -> None:
    with pytest.raises(DatabaseUnavailableError), DbSession(engine) as session:  # noqa: PT012
        session.execute("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
        pid = session.execute_scalar("SELECT pg_backend_pid()")
        alive = text("SELECT COUNT(*) FROM pg_stat_activity WHERE pid = :pid")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as admin:
            wait_until(lambda: admin.execute(alive, {"pid": pid}).scalar() == 0, message="the server has ended it")
        session.execute(INSERT, {"id": 1})


def test_a_read_only_database_is_unavailable(engine: Engine, make_engine: MakeEngine, postgres_url: str) -> None:
    standby = make_engine(postgres_url, connect_args={"options": "-c default_transaction_read_only=on"})
    with pytest.raises(DatabaseUnavailableError) as caught, DbSession(standby) as session:
        session.execute(INSERT, {"id": 1})

    assert caught.value.sqlstate == "25006"


def test_a_server_that_dies_is_unavailable_and_comes_back(
    private_postgres: Callable[..., PostgresServer], make_engine: MakeEngine
) -> None:
    server = private_postgres()
    engine = make_engine(server.url)
    with DbSession(engine) as session:
        session.execute("CREATE TABLE t (id INT PRIMARY KEY)")

    with pytest.raises(DatabaseUnavailableError), DbSession(engine) as session:  # noqa: PT012
        session.execute("INSERT INTO t VALUES (1)")
        server.kill()
        session.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(DatabaseUnavailableError), DbSession(engine):
        pass

    server.restart()
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT COUNT(*) FROM t") == 0


# ------------------------------------------------------------------ what the session refuses
def test_an_engine_in_autocommit_mode_is_refused(make_engine: MakeEngine, postgres_url: str) -> None:
    engine = make_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"), DbSession(engine):
        pass


def test_mysqls_locks_and_the_writer_say_what_to_use_instead(engine: Engine) -> None:
    with DbSession(engine) as session:
        with pytest.raises(ConfigurationError, match="pg_advisory_xact_lock"):
            AdvisoryLock(session, "k")
        with pytest.raises(ConfigurationError, match="FOR UPDATE"):
            RowLock(session, "orders", {"id": 1})
    for strategy in LockStrategy:
        with pytest.raises(ConfigurationError, match="insert_idempotent"):
            DbWriter(engine, DbConfig("orders"), lock_strategy=strategy)


@pytest.mark.spec("QC-001.18")
def test_an_orm_session_joins_and_cannot_commit(engine: Engine, count: Count) -> None:
    with DbSession(engine) as session:
        with Session(bind=session.connection) as orm:
            orm.execute(text("INSERT INTO orders (id) VALUES (1)"))
            orm.commit()
        assert count() == 0
    assert count() == 1


# ------------------------------------------------------------------ helpers
@pytest.mark.spec("CQ-001.12", "CQ-005.2", "CQ-005.10", "CQ-005.11", "CQ-005.12")
def test_an_idempotent_insert_keeps_the_transaction_usable(
    engine: Engine, count: Count, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "conquiet.db")
    labels = {"table": "orders", "op_type": "insert"}

    def counted() -> tuple[float, ...]:
        found = (
            REGISTRY.get_sample_value("conquiet_db_write_total", {**labels, "status": "success"}),
            REGISTRY.get_sample_value("conquiet_db_write_total", {**labels, "status": "error"}),
            REGISTRY.get_sample_value("conquiet_db_write_latency_seconds_count", labels),
            REGISTRY.get_sample_value("conquiet_db_duplicate_inserts_total", {"table": "orders"}),
        )
        return tuple(number or 0.0 for number in found)

    before = counted()
    with DbSession(engine) as session:
        assert insert_idempotent(session, "orders", 1, {"amount": 5}) is True
        assert insert_idempotent(session, "orders", 1, {"amount": 6}) is False
        assert insert_idempotent(session, "public.orders", 2, {"amount": 7}) is True

    assert count() == 2
    with pytest.raises(DbWriteError, match="no row has its id"), DbSession(engine) as session:  # noqa: PT012
        insert_idempotent(session, "orders", 3, {"email": "a@b"})
        insert_idempotent(session, "orders", 4, {"email": "a@b"})
    said = [record.getMessage() for record in caplog.records]
    assert [line[:27] for line in said] == ["duplicate insert suppressed"]
    # Committed: one row and one duplicate (public.orders has a separate label). Then one rolled back, one refused.
    assert tuple(now - then for now, then in zip(counted(), before, strict=True)) == (2, 2, 4, 1)


def test_a_second_idempotent_insert_waits_for_the_first(engine: Engine) -> None:
    def insert() -> bool:
        with DbSession(engine) as session:
            return insert_idempotent(session, "orders", 1, {})

    with ThreadPoolExecutor(1) as pool:
        with DbSession(engine) as session:
            assert insert_idempotent(session, "orders", 1, {}) is True
            second = pool.submit(insert)
            wait_until(lambda: waiting(engine) == 1, message="the second insert waits")
            assert not second.done()
        assert second.result(60) is False


def test_an_optimistic_update_meets_a_stale_version(engine: Engine) -> None:
    with DbSession(engine) as session:
        insert_idempotent(session, "orders", 1, {"amount": 5})
        assert occ_update(session, "orders", 1, {"amount": 6}, expected_version=1) == 2
    with pytest.raises(ConflictError), DbSession(engine) as session:
        occ_update(session, "orders", 1, {"amount": 7}, expected_version=1)


# ------------------------------------------------------------------ COMMIT with a lost reply
@pytest.fixture
def far(
    engine: Engine, make_engine: MakeEngine, postgres_url: str, fault_proxy: Callable[[str], FaultProxy]
) -> tuple[Engine, FaultProxy]:
    """An engine with connections through a proxy."""
    proxy = fault_proxy(postgres_url)
    return make_engine(proxy.url_for(postgres_url)), proxy


def test_a_commit_whose_reply_is_lost_is_resolved_as_committed(far: tuple[Engine, FaultProxy], count: Count) -> None:
    engine, proxy = far
    with DbSession(engine) as session:
        session.execute(INSERT, {"id": 1})
        proxy.drop_next_reply(b"COMMIT")

    proxy.wait_for_fault()
    assert count() == 1
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    with DbSession(engine) as session:
        session.execute(INSERT, {"id": 2})


def test_a_lost_reply_is_no_matter_where_nothing_was_written(far: tuple[Engine, FaultProxy]) -> None:
    """A duplicate that the inbox skips writes nothing: it may be acknowledged."""
    engine, proxy = far
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT COUNT(*) FROM orders") == 0
        proxy.drop_next_reply(b"COMMIT")

    proxy.wait_for_fault()
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.mark.spec("QC-001.16")
def test_a_commit_that_never_arrived_is_resolved_as_failed(far: tuple[Engine, FaultProxy], count: Count) -> None:
    engine, proxy = far
    with pytest.raises(DatabaseUnavailableError, match="rolled back"), DbSession(engine) as session:  # noqa: PT012
        session.execute(INSERT, {"id": 1})
        proxy.drop_next_request(b"COMMIT")

    assert count() == 0
