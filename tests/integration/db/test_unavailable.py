"""A database that is unreachable, read-only or without a free connection: reported, and no attempt is charged."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, make_url, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from conquiet.config import DbConfig
from conquiet.db import (
    DbOperation,
    DbOperationType,
    DbSession,
    DbWriter,
    LockStrategy,
    insert_idempotent,
    occ_update,
    pool_capacity,
    retry_on_conflict,
)
from conquiet.errors import (
    CommitUnknownError,
    ConflictError,
    DatabaseUnavailableError,
    DbWriteError,
    InfrastructureError,
    LifecycleError,
)
from conquiet.testing import FaultProxy
from conquiet.testing.mysql import MySQLServer

INSERT = "INSERT INTO orders (id) VALUES (:id)"
PLAINTEXT: dict[str, dict[str, Any]] = {"pymysql": {"connect_args": {"ssl_disabled": True}}, "mysqldb": {}}


class Base(DeclarativeBase):
    """Of the mapped classes of these tests."""


class Order(Base):
    """A row of ``orders``."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


def insert(id_value: int) -> DbOperation:
    return DbOperation("orders", DbOperationType.INSERT, id_value, {"id": id_value})


def update(id_value: int) -> DbOperation:
    return DbOperation("orders", DbOperationType.UPDATE, id_value, {"amount": 1})


def ids(admin: Connection) -> set[int]:
    return set(admin.execute(text("SELECT id FROM orders")).scalars())


def open_and_write(engine: Engine) -> None:
    with DbSession(engine) as session:
        session.execute(INSERT, {"id": 99})


def orm_write(engine: Engine) -> None:
    with DbSession(engine) as session, Session(bind=session.connection) as orm:
        orm.add(Order(id=99, amount=1))
        orm.commit()


WAYS: list[Callable[[Engine], object]] = [
    open_and_write,
    orm_write,
    lambda engine: retry_on_conflict(engine, lambda session: insert_idempotent(session, "orders", 99, {})),
    lambda engine: retry_on_conflict(
        engine, lambda one: occ_update(one, "orders", 1, {"amount": 1}, expected_version=1)
    ),
    lambda engine: DbWriter(engine, DbConfig("orders")).execute(insert(99)),
    lambda engine: DbWriter(engine, DbConfig("orders")).execute_many([insert(98), insert(99)]),
    lambda engine: DbWriter(engine, DbConfig("orders")).execute(update(1)),
    *(
        lambda engine, strategy=strategy: DbWriter(engine, DbConfig("orders"), strategy).execute(update(1))
        for strategy in LockStrategy
    ),
]


def test_a_server_that_is_down_is_unavailable_by_every_way(
    private_mysql: Callable[..., MySQLServer], make_engine: Callable[..., Engine]
) -> None:
    server = private_mysql()
    engine = make_engine(server.create_database("away"))
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE orders (id INT PRIMARY KEY, amount INT, version INT DEFAULT 1)"))
        conn.execute(text("INSERT INTO orders (id) VALUES (1)"))
    engine.dispose()
    server.kill()

    for way in WAYS:
        with pytest.raises(DatabaseUnavailableError, match="could not be reached"):
            way(engine)


def test_a_server_that_dies_inside_a_session_is_unavailable_before_the_commit(
    private_mysql: Callable[..., MySQLServer], make_engine: Callable[..., Engine]
) -> None:
    server = private_mysql()
    engine = make_engine(server.create_database("away"))
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)"))

    with pytest.raises(DatabaseUnavailableError) as caught, DbSession(engine) as session:  # noqa: PT012 - the block raises
        session.execute(INSERT, {"id": 1})
        server.kill()
        with pytest.raises(DatabaseUnavailableError):
            session.execute(INSERT, {"id": 2})
        session.execute(INSERT, {"id": 3})  # the caller continued: the block still raises the outage

    assert isinstance(caught.value, InfrastructureError)


def test_an_orm_error_of_a_lost_connection_leaves_the_block_as_unavailable(engine: Engine, admin: Connection) -> None:
    with pytest.raises(DatabaseUnavailableError) as caught, DbSession(engine) as session:  # noqa: PT012 - the block raises
        own = session.execute_scalar("SELECT CONNECTION_ID()")
        with Session(bind=session.connection) as orm:
            orm.add(Order(id=1, amount=1))
            orm.flush()
            admin.execute(text(f"KILL {own}"))
            orm.add(Order(id=2, amount=1))
            orm.flush()

    assert caught.value.__cause__ is not None
    assert ids(admin) == set()


def test_an_orm_deadlock_leaves_the_block_as_a_conflict(engine: Engine, admin: Connection) -> None:
    """So that ``retry_on_conflict`` works for handlers that use the ORM."""
    admin.execute(text("INSERT INTO orders (id, amount) VALUES (1, 0)"))
    attempts: list[int] = []

    def work(session: DbSession) -> None:
        attempts.append(1)
        with Session(bind=session.connection) as orm:
            orm.get(Order, 1)
            if len(attempts) == 1:
                orm.execute(text("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213"))
            orm.execute(text("UPDATE orders SET amount = amount + 1"))

    retry_on_conflict(engine, work, sleep=lambda _: None)

    assert len(attempts) == 2
    assert admin.execute(text("SELECT amount FROM orders")).scalar() == 1


def test_a_lost_reply_to_the_commit_of_a_session_stays_unknown(
    engine: Engine,
    make_engine: Callable[..., Engine],
    fault_proxy: Callable[[str], FaultProxy],
    db_url: str,
    driver: str,
) -> None:
    proxy = fault_proxy(db_url)
    far = make_engine(proxy.url_for(db_url), **PLAINTEXT[driver])
    with pytest.raises(CommitUnknownError), DbSession(far) as session:  # noqa: PT012 - leaving the block raises
        session.execute(INSERT, {"id": 1})
        proxy.drop_next_reply(b"\x03COMMIT")


@pytest.fixture
def modest(
    private_mysql: Callable[..., MySQLServer], make_engine: Callable[..., Engine]
) -> Iterator[tuple[Engine, Connection]]:
    """An engine of a user without SUPER, and an administrator's connection, on a server of the test's own."""
    url = private_mysql().create_database("shop")
    root = make_engine(url, isolation_level="AUTOCOMMIT")
    with root.connect() as admin:
        admin.execute(text("CREATE TABLE orders (id INT PRIMARY KEY, amount INT, version INT DEFAULT 1)"))
        admin.execute(text("INSERT INTO orders (id) VALUES (1)"))
        for host in ("localhost", "127.0.0.1", "%"):
            admin.execute(text(f"CREATE USER 'modest'@'{host}' IDENTIFIED BY 'pw'"))
            admin.execute(text(f"GRANT SELECT, INSERT, UPDATE, LOCK TABLES ON shop.* TO 'modest'@'{host}'"))
        yield (
            make_engine(str(make_url(url).set(username="modest", password="pw").render_as_string(hide_password=False))),
            admin,
        )


def test_a_read_only_server_is_unavailable_by_every_way(modest: tuple[Engine, Connection]) -> None:
    engine, admin = modest
    admin.execute(text("SET GLOBAL read_only = 1"))

    for way in WAYS:
        with pytest.raises(DatabaseUnavailableError) as caught:
            way(engine)
        assert caught.value.errno in {1290, 1836}, way
    admin.execute(text("SET GLOBAL read_only = 0"))

    open_and_write(engine)
    assert ids(admin) == {1, 99}


def test_a_server_turned_read_only_before_commit_is_unavailable_not_unknown(
    modest: tuple[Engine, Connection],
) -> None:
    engine, admin = modest
    with pytest.raises(DatabaseUnavailableError), DbSession(engine) as session:  # noqa: PT012 - leaving the block raises
        session.execute(INSERT, {"id": 2})
        admin.execute(text("SET GLOBAL read_only = 1"))
    admin.execute(text("SET GLOBAL read_only = 0"))

    assert ids(admin) == {1}


def test_a_wrong_password_or_schema_is_unavailable_while_connecting(
    make_engine: Callable[..., Engine], db_url: str
) -> None:
    url = make_url(db_url)
    for wrong in (url.set(database="no_such_schema"), url.set(username="no_such_user", password="x")):
        engine = make_engine(wrong.render_as_string(hide_password=False))
        for way in (open_and_write, WAYS[4]):
            with pytest.raises(DatabaseUnavailableError):
                way(engine)


# ------------------------------------------------------------------ the pool
def test_an_exhausted_pool_names_its_size_the_concurrency_and_the_fix(
    make_engine: Callable[..., Engine], engine: Engine, db_url: str
) -> None:
    small = make_engine(db_url, pool_size=1, max_overflow=1, pool_timeout=0.05)
    assert pool_capacity(small) == 2

    with DbSession(small), DbSession(small), pytest.raises(DatabaseUnavailableError) as caught, DbSession(small):
        pytest.fail("there is no third connection")

    for fact in ("pool_size 1", "max_overflow 1", "at most 2", "concurrency is larger than the pool", "create_engine"):
        assert fact in str(caught.value)


def test_an_exhausted_pool_of_a_writer_says_the_same(
    make_engine: Callable[..., Engine], engine: Engine, db_url: str
) -> None:
    writer = DbWriter(make_engine(db_url, pool_size=1, max_overflow=0, pool_timeout=0.05), DbConfig("orders"))
    writer.execute(insert(1))
    inside, leave = threading.Event(), threading.Event()

    def slow(_row: Any) -> None:
        inside.set()
        assert leave.wait(60)

    holder = threading.Thread(target=writer.modify, args=(1, slow))
    holder.start()
    assert inside.wait(60)
    try:
        with pytest.raises(DatabaseUnavailableError, match="pool_size 1, max_overflow 0"):
            writer.execute(insert(2))
    finally:
        leave.set()
        holder.join()


# ------------------------------------------------------------------ what gets into the log
SECRET = "no such customer: jane.doe@example.com"


class CustomerError(Exception):
    """Raised by a handler; its text quotes the message."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Everything that a formatter could print."""
    formatter = logging.Formatter("%(message)s")
    return [
        f"{formatter.format(record)} {[str(one) for one in chain(record.exc_info[1] if record.exc_info else None)]}"
        for record in caplog.records
    ]


def fail_in_a_session(engine: Engine) -> None:
    with DbSession(engine) as session:
        session.execute(INSERT, {"id": 1})
        raise CustomerError(SECRET)


def succeed_while_another_error_is_handled(engine: Engine) -> None:
    try:
        raise CustomerError(SECRET)
    except CustomerError:
        with DbSession(engine) as session:
            session.execute(INSERT, {"id": 1})
        raise


class CustomerInterrupt(BaseException):
    """Like the hard limit of a task runner: the connection is closed immediately."""


def break_off_modify(engine: Engine) -> None:
    def change(_row: Any) -> None:
        raise CustomerInterrupt(SECRET)

    writer = DbWriter(engine, DbConfig("orders"), LockStrategy.ADVISORY)
    writer.execute(insert(1))
    writer.modify(1, change)


@pytest.mark.parametrize("fail", [fail_in_a_session, succeed_while_another_error_is_handled])
def test_a_connection_lost_on_return_logs_nothing_of_the_handlers_error(
    engine: Engine,
    make_engine: Callable[..., Engine],
    fault_proxy: Callable[[str], FaultProxy],
    db_url: str,
    driver: str,
    caplog: pytest.LogCaptureFixture,
    fail: Callable[[Engine], None],
) -> None:
    """It dies between conquiet's ROLLBACK or COMMIT and the pool's ROLLBACK; the pool logs its failure."""
    caplog.set_level(logging.DEBUG)
    proxy = fault_proxy(db_url)
    far = make_engine(proxy.url_for(db_url), **PLAINTEXT[driver])
    event.listen(far, "reset", lambda *_: proxy.disconnect())

    with pytest.raises(CustomerError):
        fail(far)

    entries = logged(caplog)
    assert any("Exception during reset" in entry for entry in entries), "the fault did not strike"
    assert [entry for entry in entries if "jane" in entry] == []


@pytest.mark.parametrize("fail", [fail_in_a_session, break_off_modify])
def test_a_connection_that_cannot_be_closed_logs_nothing_of_the_handlers_error(
    engine: Engine,
    make_engine: Callable[..., Engine],
    db_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[Engine], None],
) -> None:
    caplog.set_level(logging.DEBUG)
    far = make_engine(db_url)

    def refuse(*_: Any) -> None:
        raise OSError("cannot do that")

    def refuse_to_close(dbapi: Any) -> None:
        dbapi.close()
        raise OSError("closing failed")

    with far.connect():
        pass  # the dialect is initialized
    monkeypatch.setattr(far.dialect, "do_rollback", refuse)
    monkeypatch.setattr(far.dialect, "do_close", refuse_to_close)
    monkeypatch.setattr(far.dialect, "do_terminate", refuse_to_close)

    with pytest.raises((CustomerError, CustomerInterrupt)):
        fail(far)
    entries = logged(caplog)

    assert any("closing failed" in entry for entry in entries), "the fault did not strike"
    assert [entry for entry in entries if "jane" in entry] == []


# ------------------------------------------------------------------ one transaction under the ORM, on a real server
def test_the_commit_of_an_orm_session_is_left_to_ours(engine: Engine, admin: Connection) -> None:
    with DbSession(engine) as session:
        with Session(bind=session.connection) as orm:
            orm.add(Order(id=1, amount=1))
            orm.commit()
        assert ids(admin) == set(), "another connection sees it before our COMMIT"
        session.execute(INSERT, {"id": 2})
    assert ids(admin) == {1, 2}

    with pytest.raises(CustomerError), DbSession(engine) as session:  # noqa: PT012 - leaving the block raises
        with Session(bind=session.connection) as orm:
            orm.add(Order(id=3, amount=1))
            orm.commit()
        raise CustomerError
    assert ids(admin) == {1, 2}


def test_a_commit_by_other_code_is_refused_and_all_is_rolled_back(engine: Engine, admin: Connection) -> None:
    with pytest.raises(LifecycleError, match=r"remove commit\(\)"), DbSession(engine) as session:  # noqa: PT012 - the same
        conn = session.connection
        session.execute(INSERT, {"id": 1})
        conn.commit()
        conn.execute(text(INSERT), {"id": 2})
    assert ids(admin) == set()


# ------------------------------------------------------------------ what is missing is named
def test_a_missing_table_or_column_is_named(engine: Engine) -> None:
    with DbSession(engine) as session, pytest.raises(DbWriteError, match=r"there is no table \w+\.ordres;"):
        session.execute("INSERT INTO ordres (id) VALUES (1)")
    writer = DbWriter(engine, DbConfig("orders"))
    with pytest.raises(DbWriteError, match="no column emial;"):
        writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1, "emial": "x"}))
    with pytest.raises(DbWriteError, match=r"there is no table \w+\.ordres;"):
        writer.execute(DbOperation("ordres", DbOperationType.INSERT, 1, {"id": 1}))


def test_a_duplicate_says_which_row_only_where_it_was_looked_up(engine: Engine) -> None:
    with pytest.raises(ConflictError), DbSession(engine) as session:  # noqa: PT012 - the block raises
        session.execute("INSERT INTO orders (id, email) VALUES (1, 'a')")
        with pytest.raises(DbWriteError, match="unique key exists already") as caught:
            session.execute("INSERT INTO orders (id) VALUES (1)")
        assert "requested row" not in str(caught.value)
        with pytest.raises(DbWriteError, match="not in the requested row"):
            insert_idempotent(session, "orders", 2, {"email": "a"})
        occ_update(session, "orders", 1, {}, expected_version=7)
