"""DbSession stays one transaction when an ORM session, or other code, works on its connection (SQLite)."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from conquiet.db import DbSession
from conquiet.errors import LifecycleError


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


def test_the_commit_of_an_orm_session_commits_nothing_of_ours(sqlite: Engine) -> None:
    with pytest.raises(HandlerError), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block is what raises
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


def end_by_connection_commit(session: DbSession) -> None:
    session.connection.commit()


def end_by_connection_rollback(session: DbSession) -> None:
    session.connection.rollback()


def end_by_an_orm_session_in_full_control(session: DbSession) -> None:
    with Session(bind=session.connection, join_transaction_mode="control_fully") as orm:
        orm.add(Order(id=1, amount=1))
        orm.commit()


ENDINGS: list[Callable[[DbSession], None]] = [
    end_by_connection_commit,
    end_by_connection_rollback,
    end_by_an_orm_session_in_full_control,
]


@pytest.mark.parametrize("end", ENDINGS)
def test_a_transaction_that_other_code_ended_is_noticed(sqlite: Engine, end: Callable[[DbSession], None]) -> None:
    with pytest.raises(LifecycleError, match="by other code"), DbSession(sqlite) as session:  # noqa: PT012 - the same
        end(session)
        for use in (lambda: session.execute("SELECT 1"), lambda: session.connection, lambda: session.fetch_all("x")):
            with pytest.raises(LifecycleError, match="by other code"):
                use()


@pytest.mark.parametrize("end", ENDINGS)
def test_what_is_written_after_a_foreign_end_is_rolled_back(sqlite: Engine, end: Callable[[DbSession], None]) -> None:
    with pytest.raises(LifecycleError, match="by other code"), DbSession(sqlite) as session:  # noqa: PT012 - the same
        conn = session.connection
        end(session)
        conn.execute(text("INSERT INTO orders (id, amount) VALUES (7, 7)"))
    assert 7 not in ids(sqlite)


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
