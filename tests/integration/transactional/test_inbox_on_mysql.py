"""The inbox row on InnoDB: which run waits, which is skipped, which gets a conflict."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import sessionmaker

from conquiet.db.session import DbSession
from conquiet.errors import (
    ConflictError,
    DatabaseUnavailableError,
    DbWriteError,
    LifecycleError,
    MessageInProgressError,
)
from conquiet.queue.models import QueueMessage
from conquiet.testing import wait_until
from conquiet.transactional import Inbox, InboxKey, Outbox, create_tables, effect_once

MESSAGE = QueueMessage("orders", "billing", "1-0", {})


def a_message(message_id: str, data: bytes) -> QueueMessage:
    return QueueMessage("orders", "billing", message_id, {}).with_bytes(data)


def waiting(engine: Engine) -> int:
    """Return how many transactions of the server wait for a row."""
    with engine.connect() as connection:
        return int(
            connection.execute(
                text("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
            ).scalar_one()
        )


def wait_for_waiters(engine: Engine, count: int) -> None:
    # The view is a copy that InnoDB renews only if it was not read for 100 ms.
    wait_until(lambda: waiting(engine) == count, interval_s=0.15, message=f"{count} runs wait for the row")


def rows(engine: Engine) -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar("SELECT COUNT(*) FROM conquiet_inbox"))


class FirstRun:
    """A run of MESSAGE in a thread, which holds its transaction open until the test ends it."""

    def __init__(self, pool: ThreadPoolExecutor, engine: Engine, data: bytes = b"") -> None:
        self._message = a_message(MESSAGE.id, data)
        self._entered, self._end = threading.Event(), threading.Event()
        self._fail = False
        self._future = pool.submit(self._run, engine)
        assert self._entered.wait(60)

    def _run(self, engine: Engine) -> None:
        with DbSession(engine) as session, Inbox().once(session, self._message) as first_time:
            assert first_time
            self._entered.set()
            assert self._end.wait(60)
            if self._fail:
                raise RuntimeError

    def commit(self) -> None:
        self._end.set()
        self._future.result(60)

    def roll_back(self) -> None:
        self._fail = True
        self._end.set()
        with pytest.raises(RuntimeError):
            self._future.result(60)


def enter(engine: Engine) -> bool:
    with DbSession(engine) as session, Inbox().once(session, MESSAGE) as first_time:
        return first_time


def test_a_second_run_waits_for_the_first_and_is_skipped(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = FirstRun(pool, engine)
        second = pool.submit(enter, engine)
        wait_for_waiters(engine, 1)
        assert not second.done()

        first.commit()

        assert second.result(60) is False
    assert rows(engine) == 1


def test_a_second_run_takes_over_when_the_first_has_rolled_back(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = FirstRun(pool, engine)
        second = pool.submit(enter, engine)
        wait_for_waiters(engine, 1)

        first.roll_back()

        assert second.result(60) is True
    assert rows(engine) == 1


def test_of_many_that_waited_for_a_rollback_one_is_first(engine: Engine) -> None:
    """All get a shared lock on the deleted row and deadlock over the exclusive one: one is first, the others fail."""
    with ThreadPoolExecutor(4) as pool:
        first = FirstRun(pool, engine)
        others: list[Future[bool]] = [pool.submit(enter, engine) for _ in range(3)]
        wait_for_waiters(engine, 3)

        first.roll_back()

        answers = [None if isinstance(other.exception(60), ConflictError) else other.result() for other in others]
    assert answers.count(True) == 1
    assert rows(engine) == 1


def test_a_row_that_is_younger_than_the_snapshot_is_seen(engine: Engine) -> None:
    """At REPEATABLE READ a plain SELECT would not find the row that the INSERT has met."""
    with DbSession(engine) as session:
        session.execute_scalar("SELECT COUNT(*) FROM conquiet_inbox")
        assert enter(engine) is True

        with Inbox().once(session, MESSAGE) as first_time:
            assert first_time is False


def test_waiting_too_long_is_a_conflict_and_leaves_nothing(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine]
) -> None:
    impatient = make_engine(db_url, lock_wait_s=1)
    with ThreadPoolExecutor(1) as pool:
        first = FirstRun(pool, engine)

        with pytest.raises(MessageInProgressError) as caught:
            enter(impatient)

        assert caught.value.errno == 1205
        first.roll_back()
    assert rows(engine) == 0


@pytest.mark.parametrize("place", ["session", "connection"])
def test_a_handler_that_swallows_a_deadlock_cannot_commit_without_its_inbox_row(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine], place: str
) -> None:
    """The server has rolled everything back, the row included. Continuing would be an effect without a row."""

    def run(session: DbSession, statement: str) -> None:
        if place == "session":
            session.execute(statement)
        else:
            session.connection.execute(text(statement))

    with DbSession(engine) as session:
        session.execute("CREATE TABLE account (id INT PRIMARY KEY, balance INT)")
        session.execute("INSERT INTO account VALUES (1, 0), (2, 0)")
    impatient = make_engine(db_url, lock_wait_s=1)

    with DbSession(engine) as other:
        other.execute("UPDATE account SET balance = 1 WHERE id = 1")
        with pytest.raises((ConflictError, LifecycleError)):  # noqa: PT012, SIM117 - the whole block is one transaction
            with DbSession(impatient) as session, Inbox().once(session, MESSAGE):
                with pytest.raises((ConflictError, OperationalError)):
                    run(session, "UPDATE account SET balance = 2 WHERE id = 1")
                run(session, "UPDATE account SET balance = 2 WHERE id = 2")

    assert rows(engine) == 0
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT balance FROM account WHERE id = 2") == 0


@pytest.mark.parametrize("place", ["ORM session", "connection"])
def test_a_lost_connection_that_a_handler_hides_is_not_the_messages_fault(engine: Engine, place: str) -> None:
    """SQLAlchemy reports the next statement as a mistake: a rollback is missing."""

    def work(session: Any) -> None:
        own = session.connection if isinstance(session, DbSession) else session
        with suppress(DBAPIError):
            own.execute(text("KILL CONNECTION_ID()"))
        own.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailableError):
        effect_once(engine if place == "connection" else sessionmaker(engine), Inbox(), MESSAGE, work)
    assert rows(engine) == 0


def test_the_inbox_costs_one_statement_and_a_second_for_duplicates(engine: Engine) -> None:
    """Counted at the server: a first time, a duplicate, an id that another message had, and its duplicate."""

    def questions() -> int:
        with engine.connect() as connection:
            row = connection.execute(text("SHOW GLOBAL STATUS LIKE 'Questions'")).one()
            return int(row[1])

    def cost(message: QueueMessage | None) -> int:
        before = questions()
        with DbSession(engine) as session:
            if message is not None:
                with Inbox().once(session, message):
                    pass
            Outbox().add(session, "t", {"n": 1})
        return questions() - before

    cost(None)  # the first use of a connection sends more
    nothing = cost(None)
    one, other = a_message("1-0", b"1"), a_message("1-0", b"2")

    assert [cost(message) - nothing for message in (one, one, other, other)] == [1, 2, 4, 4]


# ------------------------------------------------------------------ tables of an earlier version
@pytest.fixture
def former(db_url: str, make_engine: Callable[..., Engine]) -> Engine:
    """A database with an inbox as it was made before there were digests, with one row."""
    engine = make_engine(db_url)
    with DbSession(engine) as session:
        session.execute(
            "CREATE TABLE conquiet_inbox (source VARBINARY(255) NOT NULL, consumer_group VARBINARY(255) NOT NULL, "
            "message_id VARBINARY(255) NOT NULL, handled_at DATETIME(6) NOT NULL, "
            "PRIMARY KEY (source, consumer_group, message_id), KEY by_age (handled_at)) ENGINE=InnoDB"
        )
    with DbSession(engine) as session:
        session.execute("INSERT INTO conquiet_inbox VALUES ('orders', 'billing', '1-0', UTC_TIMESTAMP(6))")
    return engine


def answers(engine: Engine, *messages: tuple[str, bytes]) -> list[bool]:
    found = []
    for message_id, data in messages:
        with DbSession(engine) as session, Inbox().once(session, a_message(message_id, data)) as first_time:
            found.append(first_time)
    return found


def test_an_inbox_of_an_earlier_version_works_as_before(former: Engine, caplog: pytest.LogCaptureFixture) -> None:
    assert answers(former, ("1-0", b"1"), ("2-0", b"1"), ("2-0", b"2")) == [False, True, False]
    assert "without the column digest" in caplog.text


def test_many_processes_add_the_digest_to_an_earlier_inbox(former: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(create_tables, former) for _ in range(8)]:
            made.result(60)

    assert answers(former, ("1-0", b"1"), ("2-0", b"1"), ("2-0", b"2")) == [False, True, True]


def test_an_inbox_in_use_is_not_blocked_by_the_upgrade(
    former: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an ALTER TABLE waits for a long transaction, every other statement on the table waits behind it."""
    monkeypatch.setattr("conquiet.transactional.migrations._ALTER_WAIT_S", 1)

    with DbSession(former) as session:
        Inbox().record(session, InboxKey("orders", "billing", "long"))
        create_tables(former)

    (record,) = [record for record in caplog.records if "not added" in record.message]
    assert record.__dict__["errno"] == 1205
    assert record.__dict__["statement"] == (
        "ALTER TABLE `conquiet_inbox` ADD COLUMN digest VARBINARY(32), COMMENT = 'conquiet schema 3'"
    )
    with DbSession(former) as session:
        assert session.execute_scalar("SELECT @@SESSION.lock_wait_timeout") > 1, "the connection is as it was"
    create_tables(former)
    assert answers(former, ("2-0", b"1"), ("2-0", b"2")) == [True, True]


def test_a_user_who_may_not_alter_the_inbox_is_shown_the_statement(
    former: Engine, db_url: str, make_engine: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    url = make_url(db_url)
    name = f"u{url.database}"[:32]
    with DbSession(former) as session:
        session.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY 'pw'")
        session.execute(f"GRANT SELECT, INSERT, CREATE ON `{url.database}`.* TO '{name}'@'%'")
    limited = make_engine(url.set(username=name, password="pw").render_as_string(hide_password=False))
    try:
        create_tables(limited)
        assert answers(limited, ("1-0", b"1"), ("2-0", b"1")) == [False, True]
    finally:
        limited.dispose()
        with DbSession(former) as session:
            session.execute(f"DROP USER '{name}'@'%'")

    (record,) = [record for record in caplog.records if "not added" in record.message]
    assert record.__dict__["errno"] == 1142


def test_an_inbox_that_cannot_get_the_digest_at_all_is_an_error(former: Engine) -> None:
    with DbSession(former) as session:
        session.execute("RENAME TABLE conquiet_inbox TO real_inbox")
        session.execute("CREATE VIEW conquiet_inbox AS SELECT * FROM real_inbox")

    with pytest.raises(DbWriteError) as caught:
        create_tables(former)

    assert caught.value.errno == 1347, "a view has no columns to add"


def test_the_second_message_of_one_id_waits_and_then_runs(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = FirstRun(pool, engine, b"1")
        second = pool.submit(answers, engine, ("1-0", b"2"))
        wait_for_waiters(engine, 1)
        assert not second.done()

        first.commit()

        assert second.result(60) == [True]
    assert rows(engine) == 2
    assert answers(engine, ("1-0", b"1"), ("1-0", b"2")) == [False, False]


def test_messages_that_differ_in_case_only_are_two_messages(engine: Engine) -> None:
    with DbSession(engine) as session:
        for message_id in ("a-1", "A-1", "a-1 ", "ä", "a"):
            assert Inbox().record(session, InboxKey("s", "g", message_id))


def test_purging_does_not_keep_others_from_inserting(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine]
) -> None:
    """At the default isolation level the scan would lock the end of the index, where every new row goes."""
    impatient = make_engine(db_url, lock_wait_s=1)
    with DbSession(engine) as session:
        for number in range(10):
            Inbox().record(session, InboxKey("s", "g", str(number)))
        session.execute("UPDATE conquiet_inbox SET handled_at = '2020-01-01'")
    deleted, go_on = threading.Event(), threading.Event()

    class Slowly(DbSession):
        """Keeps its transaction open after the DELETE."""

        def __exit__(self, *exit_arguments: object) -> None:
            deleted.set()
            assert go_on.wait(60)
            super().__exit__(*exit_arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr("conquiet.transactional.purging.DbSession", Slowly)
        purge = pool.submit(Inbox().purge, engine, older_than_s=60)
        assert deleted.wait(60)

        with DbSession(impatient) as session:
            assert Inbox().record(session, InboxKey("s", "g", "new"))

        go_on.set()
        assert purge.result(60) == 10
    assert rows(engine) == 1


def test_tables_can_be_made_by_many_at_once(engine: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(create_tables, engine) for _ in range(8)]:
            made.result(60)

    assert rows(engine) == 0  # the table is there
