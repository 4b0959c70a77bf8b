"""The inbox row on InnoDB: who waits, who steps aside, who is told to come back."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from conquiet.bridge import Inbox, InboxKey, Outbox, create_tables
from conquiet.db.session import DbSession
from conquiet.errors import ConflictError, LifecycleError
from conquiet.queue.models import QueueMessage
from conquiet.testing import wait_until

MESSAGE = QueueMessage("orders", "billing", "1-0", {})


def waiting(engine: Engine) -> int:
    """How many transactions of the server wait for a row."""
    with engine.connect() as connection:
        return int(
            connection.execute(
                text("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
            ).scalar_one()
        )


def wait_for_waiters(engine: Engine, count: int) -> None:
    # The view is a copy that InnoDB renews only if nobody has looked at it for 100 ms.
    wait_until(lambda: waiting(engine) == count, interval_s=0.15, message=f"{count} runs wait for the row")


def rows(engine: Engine) -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar("SELECT COUNT(*) FROM conquiet_inbox"))


class FirstRun:
    """A run of MESSAGE in a thread, which holds its transaction open until it is told how to end."""

    def __init__(self, pool: ThreadPoolExecutor, engine: Engine) -> None:
        self._entered, self._end = threading.Event(), threading.Event()
        self._fail = False
        self._future = pool.submit(self._run, engine)
        assert self._entered.wait(60)

    def _run(self, engine: Engine) -> None:
        with DbSession(engine) as session, Inbox().once(session, MESSAGE) as first_time:
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


def test_a_second_run_waits_for_the_first_and_steps_aside_when_it_has_committed(engine: Engine) -> None:
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


def test_of_many_who_waited_for_one_that_rolled_back_exactly_one_is_first(engine: Engine) -> None:
    """They all get a shared lock on the row that is gone, and deadlock over the exclusive one: all but one are told."""
    with ThreadPoolExecutor(4) as pool:
        first = FirstRun(pool, engine)
        others: list[Future[bool]] = [pool.submit(enter, engine) for _ in range(3)]
        wait_for_waiters(engine, 3)

        first.roll_back()

        answers = [None if isinstance(other.exception(60), ConflictError) else other.result() for other in others]
    assert answers.count(True) == 1
    assert rows(engine) == 1


def test_waiting_too_long_is_a_conflict_and_leaves_nothing(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine]
) -> None:
    impatient = make_engine(db_url, lock_wait_s=1)
    with ThreadPoolExecutor(1) as pool:
        first = FirstRun(pool, engine)

        with pytest.raises(ConflictError) as caught:
            enter(impatient)

        assert caught.value.errno == 1205
        first.roll_back()
    assert rows(engine) == 0


def test_a_handler_that_swallows_a_deadlock_cannot_commit_without_its_inbox_row(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine]
) -> None:
    """The server has rolled everything back, the row included. Going on would be an effect that nobody remembers."""
    with DbSession(engine) as session:
        session.execute("CREATE TABLE account (id INT PRIMARY KEY, balance INT)")
        session.execute("INSERT INTO account VALUES (1, 0), (2, 0)")
    impatient = make_engine(db_url, lock_wait_s=1)

    with DbSession(engine) as other:
        other.execute("UPDATE account SET balance = 1 WHERE id = 1")
        with pytest.raises((ConflictError, LifecycleError)):  # noqa: PT012, SIM117 - the whole block is one transaction
            with DbSession(impatient) as session, Inbox().once(session, MESSAGE):
                with pytest.raises(ConflictError):
                    session.execute("UPDATE account SET balance = 2 WHERE id = 1")
                session.execute("UPDATE account SET balance = 2 WHERE id = 2")

    assert rows(engine) == 0
    with DbSession(engine) as session:
        assert session.execute_scalar("SELECT balance FROM account WHERE id = 2") == 0


def test_the_inbox_costs_one_statement(engine: Engine) -> None:
    def questions() -> int:
        with engine.connect() as connection:
            row = connection.execute(text("SHOW GLOBAL STATUS LIKE 'Questions'")).one()
            return int(row[1])

    def cost(inbox: Inbox | None, number: int) -> int:
        before = questions()
        with DbSession(engine) as session:
            if inbox is not None:
                inbox.enter(session, InboxKey("s", "g", str(number)))
            Outbox().add(session, "t", {"n": 1})
        return questions() - before

    cost(None, 0)  # the first use of a connection says more

    assert cost(Inbox(), 1) - cost(None, 2) == 1


def test_messages_that_differ_in_case_only_are_two_messages(engine: Engine) -> None:
    with DbSession(engine) as session:
        for message_id in ("a-1", "A-1", "a-1 ", "ä", "a"):
            assert Inbox().enter(session, InboxKey("s", "g", message_id))


def test_purging_does_not_keep_others_from_inserting(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine]
) -> None:
    """At the default isolation level the scan would lock the end of the index, where every new row goes."""
    impatient = make_engine(db_url, lock_wait_s=1)
    with DbSession(engine) as session:
        for number in range(10):
            Inbox().enter(session, InboxKey("s", "g", str(number)))
        session.execute("UPDATE conquiet_inbox SET handled_at = '2020-01-01'")
    deleted, go_on = threading.Event(), threading.Event()

    class Slowly(DbSession):
        """Keeps its transaction open after the DELETE."""

        def __exit__(self, *exit_arguments: object) -> None:
            deleted.set()
            assert go_on.wait(60)
            super().__exit__(*exit_arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr("conquiet.bridge.inbox.DbSession", Slowly)
        purge = pool.submit(Inbox().purge, engine, older_than_s=60)
        assert deleted.wait(60)

        with DbSession(impatient) as session:
            assert Inbox().enter(session, InboxKey("s", "g", "new"))

        go_on.set()
        assert purge.result(60) == 10
    assert rows(engine) == 1


def test_tables_can_be_made_by_many_at_once(engine: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(create_tables, engine) for _ in range(8)]:
            made.result(60)

    assert rows(engine) == 0  # the table is there
