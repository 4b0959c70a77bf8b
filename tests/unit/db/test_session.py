"""DbSession on SQLite: one transaction, once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import Connection

from conquiet.db import AdvisoryLock, DbSession, RowLock, insert_idempotent, occ_update, retry_on_conflict
from conquiet.errors import ConfigurationError, ConflictError, DbWriteError, LifecycleError
from conquiet.kernel.backoff import Backoff

CANARY = "canary-4711"
Call = Callable[[], object]


def amounts(engine: Engine) -> dict[int, int]:
    with DbSession(engine) as session:
        return {row["id"]: row["amount"] for row in session.fetch_all("SELECT * FROM orders")}


@pytest.mark.spec("QC-001.18")
def test_leaving_commits_everything_and_an_exception_nothing(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        assert session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)") == 1
        session.execute("INSERT INTO orders (id, amount) VALUES (:id, 20)", {"id": 2})

    with pytest.raises(RuntimeError, match="mine"), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block is what raises
        session.execute("UPDATE orders SET amount = 0")
        raise RuntimeError("mine")

    assert amounts(sqlite) == {1: 10, 2: 20}


def test_the_four_ways_to_ask(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        assert session.execute("INSERT INTO orders (id, amount) VALUES (:id, 1)", [{"id": 1}, {"id": 2}]) == 2
        assert session.execute("UPDATE orders SET amount = 5 WHERE id = :id", {"id": 404}) == 0
        assert session.execute_scalar("SELECT COUNT(*) FROM orders") == 2
        assert session.execute_scalar("SELECT id FROM orders WHERE id = 404") is None
        assert session.fetch_one("SELECT id, amount FROM orders WHERE id = :id", {"id": 1}) == {"id": 1, "amount": 1}
        assert session.fetch_one("SELECT id FROM orders WHERE id = 404") is None
        assert session.fetch_all("SELECT id FROM orders ORDER BY id") == [{"id": 1}, {"id": 2}]
        assert session.execute_scalar(r"SELECT '12\:30'") == "12:30"
        with pytest.raises(DbWriteError, match="more than one row"):
            session.fetch_one("SELECT id FROM orders")


@pytest.mark.spec("QC-001.19", "QC-001.20")
def test_a_session_lives_once(sqlite: Engine) -> None:
    session = DbSession(sqlite)
    with pytest.raises(LifecycleError):
        session.execute("SELECT 1")
    with session:
        with pytest.raises(LifecycleError), session:
            pass
        assert session.execute_scalar("SELECT 1") == 1
    with pytest.raises(LifecycleError):
        session.execute("SELECT 1")
    with pytest.raises(LifecycleError), session:
        pass


def test_leaving_a_session_that_was_never_entered_is_an_error_of_its_own(sqlite: Engine) -> None:
    with pytest.raises(LifecycleError):
        DbSession(sqlite).__exit__(None, None, None)


def test_failures_are_write_errors_without_values(sqlite: Engine) -> None:
    with pytest.raises(DbWriteError) as caught, DbSession(sqlite) as session:
        session.execute("INSERT INTO nowhere VALUES (:v)", {"v": CANARY})
    assert CANARY not in f"{caught.value} {caught.value!r}"
    assert caught.value.__cause__ is not None


def test_a_session_that_cannot_be_opened_is_a_write_error(tmp_path: Path) -> None:
    with (
        pytest.raises(DbWriteError, match="opening a session"),
        DbSession(create_engine(f"sqlite:///{tmp_path}/no/such/folder/x.db")),
    ):
        pass


def test_an_engine_in_autocommit_mode_is_refused(sqlite: Engine) -> None:
    """There would be no transaction, and nobody would notice until a rollback did nothing."""
    with (
        pytest.raises(ConfigurationError, match="AUTOCOMMIT"),
        DbSession(sqlite.execution_options(isolation_level="AUTOCOMMIT")),
    ):
        pass


def test_an_error_that_leaves_the_transaction_whole_may_be_caught_inside(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")
        with pytest.raises(DbWriteError):
            session.execute("INSERT INTO orders (id, amount) VALUES (1, 99)")
        session.execute("INSERT INTO orders (id, amount) VALUES (2, 20)")

    assert amounts(sqlite) == {1: 10, 2: 20}


def test_checks_run_right_before_commit_and_can_stop_it(sqlite: Engine) -> None:
    seen: list[Any] = []

    def check(session: DbSession) -> None:
        seen.append(session.execute_scalar("SELECT COUNT(*) FROM orders"))

    def refuse(_: DbSession) -> None:
        raise RuntimeError("not like this")

    with DbSession(sqlite) as session:
        session.before_commit(check)
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")
    with pytest.raises(RuntimeError, match="not like this"), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block is what raises
        session.before_commit(refuse)
        session.execute("INSERT INTO orders (id, amount) VALUES (2, 20)")
    with pytest.raises(ZeroDivisionError), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block is what raises
        session.before_commit(check)
        raise ZeroDivisionError

    assert seen == [1]
    assert amounts(sqlite) == {1: 10}


def test_what_comes_after_the_end_sees_the_commit_and_runs_last_first(sqlite: Engine) -> None:
    log: list[str] = []

    def note(name: str) -> Any:
        return lambda _: log.append(f"{name}:{len(amounts(sqlite))}")

    with DbSession(sqlite) as session:
        session.after_end(note("a"))
        session.after_end(note("b"))
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")

    assert log == ["b:1", "a:1"]


def test_a_release_that_fails_closes_the_connection(sqlite: Engine) -> None:
    invalidated: list[Connection] = []

    def fail(conn: Connection) -> None:
        invalidated.append(conn)
        raise RuntimeError("cannot release")

    with pytest.raises(RuntimeError, match="cannot release"), DbSession(sqlite) as session:
        session.after_end(fail)
    assert invalidated[0].closed


def test_an_interrupt_rolls_back_too(sqlite: Engine) -> None:
    with pytest.raises(KeyboardInterrupt), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block is what raises
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")
        raise KeyboardInterrupt
    assert amounts(sqlite) == {}


# ------------------------------------------------------------------ optimistic updates
def test_an_update_with_the_version_read_wins_and_raises_it(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        session.execute("INSERT INTO orders (id, amount, version) VALUES (1, 10, 3)")
        assert occ_update(session, "orders", 1, {"amount": 11}, expected_version=3) == 4
    with DbSession(sqlite) as session:
        assert session.fetch_one("SELECT amount, version FROM orders") == {"amount": 11, "version": 4}


@pytest.mark.spec("QC-001.20")
def test_a_conflict_ends_the_session_so_that_no_retry_loop_fits_inside(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")

    with pytest.raises(ConflictError, match="new session"), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block is what raises
        session.execute("UPDATE orders SET amount = 0")
        with pytest.raises(ConflictError):
            occ_update(session, "orders", 1, {"amount": 11}, expected_version=7)
        with pytest.raises(LifecycleError, match="new session"):
            occ_update(session, "orders", 1, {"amount": 11}, expected_version=1)

    assert amounts(sqlite) == {1: 10}


def test_names_given_to_the_helpers_are_checked(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        calls: tuple[Call, ...] = (
            lambda: occ_update(session, "a b", 1, {}, expected_version=1),
            lambda: occ_update(session, "orders", 1, {"x`": 1}, expected_version=1),
            lambda: occ_update(session, "orders", 1, {"version": 1}, expected_version=1),
            lambda: occ_update(session, "orders", 1, {}, expected_version=1, version_column="v;"),
            lambda: insert_idempotent(session, "orders", 1, {"a b": 1}),
            lambda: insert_idempotent(session, "orders--", 1, {}),
        )
        for call in calls:
            with pytest.raises(ConfigurationError):
                call()


def test_an_idempotent_insert_happens_once(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        assert insert_idempotent(session, "orders", 1, {"amount": 10, "email": CANARY}) is True
        assert insert_idempotent(session, "orders", 1, {"amount": 99}) is False
        with pytest.raises(DbWriteError) as caught:
            insert_idempotent(session, "orders", 2, {"email": CANARY})
        assert CANARY not in str(caught.value)
        for id_value in (1, 3):  # not a duplicate, also where the row is there
            with pytest.raises(DbWriteError):
                insert_idempotent(session, "orders", id_value, {"status": None})
    assert amounts(sqlite) == {1: 10}


def test_a_retry_gets_a_new_session_each_time_and_gives_up_at_last(sqlite: Engine) -> None:
    sessions: list[DbSession] = []
    waits: list[float] = []

    def conflicting(session: DbSession) -> str:
        sessions.append(session)
        if len(sessions) < 3:
            raise ConflictError("somebody was first")
        return "done"

    backoff = Backoff(base_s=1, factor=2, jitter=0)
    assert retry_on_conflict(sqlite, conflicting, attempts=3, backoff=backoff, sleep=waits.append) == "done"
    assert len(set(map(id, sessions))) == 3
    assert waits == [1, 2]

    sessions.clear()
    with pytest.raises(ConflictError):
        retry_on_conflict(sqlite, conflicting, attempts=2, backoff=backoff, sleep=waits.append)
    assert len(sessions) == 2


def test_only_conflicts_are_retried(sqlite: Engine) -> None:
    calls: list[int] = []

    def failing(_: DbSession) -> None:
        calls.append(1)
        raise DbWriteError("something else")

    with pytest.raises(DbWriteError):
        retry_on_conflict(sqlite, failing, sleep=lambda _: None)
    with pytest.raises(ConfigurationError):
        retry_on_conflict(sqlite, failing, attempts=0)
    assert len(calls) == 1


def test_mysqls_locks_say_that_they_are_mysqls(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        with pytest.raises(ConfigurationError, match="AdvisoryLock is a lock of MySQL"):
            AdvisoryLock(session, "key")
        with pytest.raises(ConfigurationError, match="RowLock is a lock of MySQL"):
            RowLock(session, "orders", {"id": 1})
