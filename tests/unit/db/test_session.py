"""DbSession on SQLite: one transaction, once, even when an ORM session works on its connection."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from conquiet.db import DbSession
from conquiet.errors import ConfigurationError, ConflictError, DbWriteError, LifecycleError

CANARY = "canary-4711"


Call = Callable[[], object]


def amounts(engine: Engine) -> dict[int, int]:
    with DbSession(engine) as session:
        return {row["id"]: row["amount"] for row in session.fetch_all("SELECT * FROM orders")}


class Base(DeclarativeBase):
    """Of the mapped classes of these tests."""


class Order(Base):
    """A row of ``orders``."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


def ids(engine: Engine) -> set[int]:
    with engine.connect() as conn:
        return set(conn.execute(text("SELECT id FROM orders")).scalars())


class HandlerError(Exception):
    """Raised by the handler of a test."""


def end_by_connection_commit(session: DbSession) -> None:
    with suppress(LifecycleError):  # refused
        session.connection.commit()


def end_by_connection_rollback(session: DbSession) -> None:
    session.connection.rollback()


def end_by_an_orm_session_in_full_control(session: DbSession) -> None:
    with Session(bind=session.connection, join_transaction_mode="control_fully") as orm:
        orm.add(Order(id=1, amount=1))
        with suppress(LifecycleError):
            orm.commit()


ENDINGS: list[Callable[[DbSession], None]] = [
    end_by_connection_commit,
    end_by_connection_rollback,
    end_by_an_orm_session_in_full_control,
]


@pytest.mark.spec("QC-001.18")
def test_leaving_commits_everything_and_an_exception_nothing(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        assert session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)") == 1
        session.execute("INSERT INTO orders (id, amount) VALUES (:id, 20)", {"id": 2})

    with pytest.raises(RuntimeError, match="mine"), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
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


def test_a_check_before_commit_that_is_not_awaited_prevents_the_commit(sqlite: Engine) -> None:
    async def check(_: DbSession) -> None:
        raise AssertionError("not awaited")

    with (  # noqa: PT012 - leaving the block raises
        pytest.raises(ConfigurationError, match="a check of before_commit returned a coroutine"),
        DbSession(sqlite) as session,
    ):
        session.before_commit(check)  # type: ignore[arg-type]
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")

    assert amounts(sqlite) == {}


def test_checks_run_right_before_commit_and_can_stop_it(sqlite: Engine) -> None:
    seen: list[Any] = []

    def check(session: DbSession) -> None:
        seen.append(session.execute_scalar("SELECT COUNT(*) FROM orders"))

    def refuse(_: DbSession) -> None:
        raise RuntimeError("not like this")

    with DbSession(sqlite) as session:
        session.before_commit(check)
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")
    with pytest.raises(RuntimeError, match="not like this"), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
        session.before_commit(refuse)
        session.execute("INSERT INTO orders (id, amount) VALUES (2, 20)")
    with pytest.raises(ZeroDivisionError), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
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
    with pytest.raises(KeyboardInterrupt), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
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


def test_the_commit_of_an_orm_session_commits_nothing_of_ours(sqlite: Engine) -> None:
    with pytest.raises(HandlerError), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
        with Session(bind=session.connection) as orm:
            orm.add(Order(id=1, amount=1))
            orm.commit()
        raise HandlerError
    assert ids(sqlite) == set()

    with DbSession(sqlite) as session:
        session.execute("INSERT INTO orders (id, amount) VALUES (2, 2)")
        with Session(bind=session.connection) as orm:
            orm.add(Order(id=3, amount=3))
            orm.commit()
            orm.add(Order(id=4, amount=4))
            orm.commit()
        session.execute("INSERT INTO orders (id, amount) VALUES (5, 5)")
    assert ids(sqlite) == {2, 3, 4, 5}


def test_the_rollback_of_an_orm_session_ends_ours(sqlite: Engine) -> None:
    """It took with it what was written before, an inbox row for one. Committing the rest would keep half."""
    with pytest.raises(LifecycleError, match="by other code"), DbSession(sqlite) as session:  # noqa: PT012 - the same
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 1)")
        with Session(bind=session.connection) as orm:
            orm.add(Order(id=1, amount=9))
            with pytest.raises(IntegrityError):
                orm.flush()
            orm.rollback()
    assert ids(sqlite) == set()


@pytest.mark.parametrize("end", ENDINGS)
def test_a_transaction_that_other_code_ended_is_noticed(sqlite: Engine, end: Callable[[DbSession], None]) -> None:
    with pytest.raises(LifecycleError, match="by other code"), DbSession(sqlite) as session:  # noqa: PT012 - the same
        end(session)
        for use in (lambda: session.execute("SELECT 1"), lambda: session.connection, lambda: session.fetch_all("x")):
            with pytest.raises(LifecycleError, match="by other code"):
                use()


@pytest.mark.parametrize("end", ENDINGS)
def test_statements_after_a_foreign_end_are_rolled_back(sqlite: Engine, end: Callable[[DbSession], None]) -> None:
    with pytest.raises(LifecycleError, match="by other code"), DbSession(sqlite) as session:  # noqa: PT012 - the same
        conn = session.connection
        end(session)
        with suppress(InvalidRequestError):
            conn.execute(text("INSERT INTO orders (id, amount) VALUES (7, 7)"))
    assert ids(sqlite) == set()


def test_a_commit_of_the_connection_is_not_sent(sqlite: Engine) -> None:
    with pytest.raises(LifecycleError, match=r"remove commit\(\)"), DbSession(sqlite) as session:  # noqa: PT012 - the same
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 1)")
        session.connection.commit()
    assert ids(sqlite) == set()


def test_a_lost_connection_is_not_opened_again_for_its_rollback(sqlite: Engine) -> None:
    """The wait for a server that is gone would delay the error."""
    sqlite.dispose()
    opened: list[object] = []
    event.listen(sqlite, "connect", lambda *_: opened.append(1))
    with pytest.raises(HandlerError), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
        conn = session.connection
        with suppress(LifecycleError):
            conn.commit()
        conn.invalidate()
        raise HandlerError
    assert opened == [1]


def test_a_release_may_use_the_guarded_connection(sqlite: Engine) -> None:
    """It runs after the COMMIT, in another transaction."""
    seen: list[object] = []
    with DbSession(sqlite) as session:
        session.connection.execute(text("INSERT INTO orders (id, amount) VALUES (1, 1)"))
        session.on_close(lambda conn: seen.append(conn.scalar(text("SELECT COUNT(*) FROM orders"))))
    assert seen == [1]


def test_a_check_before_commit_cannot_end_the_transaction_either(sqlite: Engine) -> None:
    with pytest.raises(LifecycleError, match="by other code"), DbSession(sqlite) as session:
        session.before_commit(lambda one: one.connection.rollback())


@pytest.mark.parametrize(
    "statement", ["COMMIT", " commit ", "/* done */ COMMIT", "-- so\nCOMMIT AND CHAIN", "ROLLBACK", "rollback work"]
)
def test_a_statement_that_ends_the_transaction_is_not_sent(sqlite: Engine, statement: str) -> None:
    with DbSession(sqlite) as session:
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 1)")
        with pytest.raises(LifecycleError, match="was not sent"):
            session.execute(statement)
        with pytest.raises(LifecycleError, match="was not sent"):
            session.execute("BEGIN")
    assert ids(sqlite) == {1}


def test_savepoints_and_a_first_begin_are_the_callers_own(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        session.execute("BEGIN IMMEDIATE")
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 1)")
        session.execute("SAVEPOINT one")
        session.execute("INSERT INTO orders (id, amount) VALUES (2, 2)")
        session.execute("ROLLBACK TO one")
        with session.connection.begin_nested():
            session.execute("INSERT INTO orders (id, amount) VALUES (3, 3)")
    assert ids(sqlite) == {1, 3}
