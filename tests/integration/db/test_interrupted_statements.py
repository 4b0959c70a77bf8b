"""An exception that a signal handler raises during a statement: the error, and the state of the connection."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Engine, TextClause, event, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import AdvisoryLock, DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy, WriteOutcome
from conquiet.errors import CommitUnknownError, DbWriteError, LifecycleError
from conquiet.testing import wait_until


class TimeLimitError(Exception):
    """As a task runner's soft time limit."""


def insert(id_value: int) -> DbOperation:
    return DbOperation("orders", DbOperationType.INSERT, id_value, {"id": id_value})


def ids(admin: Connection) -> set[int]:
    return set(admin.execute(text("SELECT id FROM orders")).scalars())


# Of this test's database only: a connection that an earlier test interrupted may still wait on the server.
_LOCK_WAIT = text("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE()")
# This view is refreshed only if it was not queried for a tenth of a second.
_ROW_WAIT = text(
    "SELECT COUNT(*) FROM information_schema.innodb_trx t "
    "JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id "
    "WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()"
)


@contextmanager
def time_limit(admin: Connection, when: TextClause = _LOCK_WAIT, *, interval_s: float = 0.02) -> Iterator[None]:
    """Raise ``TimeLimitError`` in the block while a statement of it waits: for ``the brake``, or for a row.

    The brake is released only after the signal: however late that is, the statement has no reply by then. The signal
    has no effect outside the block, so it never interrupts a query of the test's own.
    """
    block = threading.get_ident()
    inside = False
    admin.execute(text("DO GET_LOCK('the brake', 0)"))

    def strike() -> None:
        wait_until(lambda: admin.execute(when).scalar(), interval_s=interval_s)
        signal.pthread_kill(block, signal.SIGUSR1)
        admin.execute(text("DO RELEASE_LOCK('the brake')"))

    def limit(_number: int, _frame: FrameType | None) -> None:
        if inside:
            raise TimeLimitError

    before = signal.signal(signal.SIGUSR1, limit)
    striker = threading.Thread(target=strike)
    try:
        striker.start()
        inside = True
        yield
    finally:
        inside = False
        striker.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def slow(engine: Engine, admin: Connection) -> Engine:
    """Inserting rows above 10 waits for the brake of ``time_limit``."""
    admin.execute(
        text(
            "CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW "
            "BEGIN IF NEW.id > 10 THEN DO GET_LOCK('the brake', 60); END IF; END"
        )
    )
    return engine


@pytest.mark.parametrize("listening", [False, True])
def test_an_insert_interrupted_by_a_time_limit_is_unknown(
    slow: Engine,
    admin: Connection,
    listening: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """The row will exist. And the reply to its INSERT must not be read as the reply to the next statement."""
    writer = DbWriter(slow, DbConfig("orders"))
    if listening:
        event.listen(slow, "before_cursor_execute", lambda *_: None)
    writer.execute(insert(1))

    with pytest.raises(CommitUnknownError, match="it was interrupted before the reply") as caught, time_limit(admin):
        writer.execute(insert(11))

    assert isinstance(caught.value.__cause__, TimeLimitError)
    assert writer.execute(insert(1)) == WriteOutcome(rows=0, duplicate=True)
    assert writer.execute(insert(2)) == WriteOutcome(rows=1)
    wait_until(lambda: ids(admin) == {1, 2, 11})


def test_a_time_limit_during_a_batch_calls_it_unknown(slow: Engine, admin: Connection) -> None:
    writer = DbWriter(slow, DbConfig("orders"))

    with pytest.raises(CommitUnknownError), time_limit(admin):
        writer.execute_many([insert(1), insert(11)])

    assert writer.execute(insert(2)) == WriteOutcome(rows=1)
    wait_until(lambda: ids(admin) == {1, 2, 11})


def test_a_value_that_cannot_be_sent_is_failed_and_not_unknown(engine: Engine, admin: Connection) -> None:
    writer = DbWriter(engine, DbConfig("orders"))
    op = DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1, "status": object()})
    writer.execute(insert(2))
    connected = admin.execute(text("SHOW STATUS LIKE 'Connections'")).one()[1]

    for attempt in (lambda: writer.execute(op), lambda: writer.execute_many([op, op])):
        with pytest.raises(DbWriteError) as caught:
            attempt()
        assert type(caught.value) is DbWriteError

    writer.execute(insert(3))
    assert admin.execute(text("SHOW STATUS LIKE 'Connections'")).one()[1] == connected  # the same connection
    assert ids(admin) == {2, 3}


@pytest.mark.parametrize("strategy", [LockStrategy.ROW, LockStrategy.ADVISORY, LockStrategy.ADVISORY_AND_ROW])
def test_a_time_limit_interrupts_the_wait_for_a_row(
    engine: Engine, admin: Connection, driver: str, strategy: LockStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    """Releasing the advisory lock on a connection with an outstanding reply would wait for the row first.

    mysqlclient waits in C, where no signal handler runs: there the limit applies when the server has given up.
    """
    caplog.set_level(logging.WARNING, logger="conquiet")
    python_waits = driver == "pymysql"
    if not python_waits:
        event.listen(engine, "checkout", lambda dbapi, *_: dbapi.query("SET innodb_lock_wait_timeout = 1"))
    writer = DbWriter(engine, DbConfig("orders"), strategy)
    writer.execute(insert(1))
    with engine.connect() as holds:
        holds.execute(text("SELECT id FROM orders FOR UPDATE"))

        with pytest.raises((DbWriteError, TimeLimitError)) as caught, time_limit(admin, _ROW_WAIT, interval_s=0.2):
            writer.modify(1, lambda _: pytest.fail("the row is locked"))
        still = admin.execute(_ROW_WAIT).scalar()

    assert still == python_waits  # to the server it still waits; we do not
    if python_waits:
        assert isinstance(caught.value, DbWriteError)
        assert isinstance(caught.value.__cause__, TimeLimitError)
    assert not isinstance(caught.value, CommitUnknownError)
    assert caplog.records == []  # no attempt failed: "advisory lock not released"
    assert writer.modify(1, lambda _: {"amount": 1}) == WriteOutcome(rows=1)


def test_a_time_limit_inside_a_session_ends_it_and_its_connection(engine: Engine, admin: Connection) -> None:
    with pytest.raises(TimeLimitError), DbSession(engine) as session:  # noqa: PT012 - the block is the session's
        own = session.execute_scalar("SELECT CONNECTION_ID()")
        session.execute("INSERT INTO orders (id) VALUES (1)")
        try:
            with time_limit(admin):
                session.execute_scalar("SELECT GET_LOCK('the brake', 60)")
        finally:
            with pytest.raises(LifecycleError, match="lost its connection"):
                session.execute("INSERT INTO orders (id) VALUES (2)")

    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT CONNECTION_ID()") != own
    assert ids(admin) == set()


def test_an_advisory_lock_with_an_unread_reply_is_freed(engine: Engine) -> None:
    """The lock may be acquired by then; on a pooled connection it would block all other writers."""

    def limit(_conn: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if "GET_LOCK" in statement:
            raise TimeLimitError

    event.listen(engine, "after_cursor_execute", limit)
    with pytest.raises(TimeLimitError), DbSession(engine) as session:
        AdvisoryLock(session, "key").acquire()
    event.remove(engine, "after_cursor_execute", limit)

    with DbSession(engine), DbSession(engine) as other:  # the first one has what was in the pool
        AdvisoryLock(other, "key", timeout_s=0).acquire()


def test_a_time_limit_during_the_commit_of_a_session_is_unknown(
    engine: Engine, admin: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit: Callable[[Any], None] = engine.dialect.do_commit

    def interrupted(connection: Any) -> None:
        commit(connection)
        raise TimeLimitError

    monkeypatch.setattr(engine.dialect, "do_commit", interrupted)
    with pytest.raises(CommitUnknownError), DbSession(engine) as session:  # noqa: PT012 - leaving it raises
        own = session.execute_scalar("SELECT CONNECTION_ID()")
        session.execute("INSERT INTO orders (id) VALUES (1)")

    assert ids(admin) == {1}
    with engine.connect() as conn:
        assert conn.execute(text("SELECT CONNECTION_ID()")).scalar() != own


def test_an_interrupt_costs_a_session_its_connection(engine: Engine) -> None:
    """A reply may still be on its way; the next user of the connection would read it as theirs."""
    with pytest.raises(KeyboardInterrupt), DbSession(engine) as session:  # noqa: PT012 - the block raises
        own = session.execute_scalar("SELECT CONNECTION_ID()")
        raise KeyboardInterrupt

    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT CONNECTION_ID()") != own
