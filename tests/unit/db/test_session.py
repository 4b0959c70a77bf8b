"""DbSession on SQLite: one transaction, once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import Connection

from conquiet.db import DbSession
from conquiet.errors import ConfigurationError, ConflictError, DbWriteError, LifecycleError

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


def test_execute_scalar_fetch_one_and_fetch_all_return_results(sqlite: Engine) -> None:
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
def test_a_session_can_be_entered_once(sqlite: Engine) -> None:
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


def test_leaving_a_session_never_entered_is_a_lifecycle_error(sqlite: Engine) -> None:
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
    """There would be no transaction, which would show only when a rollback did nothing."""
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


def test_on_close_callbacks_see_the_commit_and_run_in_reverse(sqlite: Engine) -> None:
    log: list[str] = []

    def note(name: str) -> Any:
        return lambda _: log.append(f"{name}:{len(amounts(sqlite))}")

    with DbSession(sqlite) as session:
        session.on_close(note("a"))
        session.on_close(note("b"))
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")

    assert log == ["b:1", "a:1"]


def test_a_release_that_fails_closes_the_connection(sqlite: Engine) -> None:
    invalidated: list[Connection] = []

    def fail(conn: Connection) -> None:
        invalidated.append(conn)
        raise RuntimeError("cannot release")

    with pytest.raises(RuntimeError, match="cannot release"), DbSession(sqlite) as session:
        session.on_close(fail)
    assert invalidated[0].closed


def test_an_interrupt_rolls_back_too(sqlite: Engine) -> None:
    with pytest.raises(KeyboardInterrupt), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block is what raises
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")
        raise KeyboardInterrupt
    assert amounts(sqlite) == {}


def test_the_first_failure_of_a_session_is_reported(sqlite: Engine) -> None:
    with pytest.raises(ConflictError, match="first"), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
        session.mark_failed(ConflictError("first"))
        session.mark_failed(ConflictError("second"))


def test_a_check_that_marks_the_session_failed_prevents_the_commit(sqlite: Engine) -> None:
    with pytest.raises(ConflictError, match="late"), DbSession(sqlite) as session:
        session.before_commit(lambda one: one.mark_failed(ConflictError("late")))
