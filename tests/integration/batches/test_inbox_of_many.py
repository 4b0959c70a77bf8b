"""``Inbox.once_many``: which messages of a list are here the first time, on each database and with each driver."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.integration.batches.conftest import Database, MakeDatabase

from conquiet.db.session import DbSession
from conquiet.errors import LifecycleError, MessageInProgressError
from conquiet.queue.models import QueueMessage
from conquiet.testing import wait_until
from conquiet.transactional import Inbox
from conquiet.transactional.unit_of_work import unit_of

pytestmark = pytest.mark.timeout(120)

ASYNC = [
    ("mysql", "pymysql", "asyncmy"),
    ("mysql", "pymysql", "aiomysql"),
    ("postgresql", "psycopg", "psycopg"),
    ("postgresql", "psycopg", "asyncpg"),
    ("sqlite", "sqlite:", "sqlite+aiosqlite:"),
]


def messages(*ids: str, data: bytes = b"{}") -> list[QueueMessage]:
    return [QueueMessage("orders", "billing", one, {}).with_bytes(data) for one in ids]


def record(database: Database, msgs: list[QueueMessage], inbox: Inbox | None = None) -> list[bool]:
    with DbSession(database.engine) as session, (inbox or Inbox()).once_many(session, msgs) as first_time:
        return first_time


def test_only_messages_without_a_committed_effect_are_first_time(database: Database) -> None:
    assert record(database, messages("1-0", "3-0")) == [True, True]

    assert record(database, messages("4-0", "3-0", "2-0", "1-0")) == [True, False, True, False]
    assert record(database, messages("4-0", "2-0")) == [False, False]
    assert database.count("conquiet_inbox") == 4


def test_a_rollback_takes_all_rows_back(database: Database) -> None:
    def record_and_fail() -> None:
        with DbSession(database.engine) as session, Inbox().once_many(session, messages("1-0", "2-0")) as first_time:
            assert first_time == [True, True]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        record_and_fail()
    assert record(database, messages("1-0", "2-0")) == [True, True]


def test_a_message_twice_in_one_list_is_first_time_once(database: Database) -> None:
    assert record(database, messages("1-0", "2-0", "1-0")) == [True, True, False]


def test_an_id_that_came_before_with_another_payload_is_first_time(database: Database) -> None:
    assert record(database, messages("1-0", "2-0", data=b"old")) == [True, True]

    mixed = messages("1-0", data=b"new") + messages("2-0", data=b"old") + messages("3-0", data=b"new")
    assert record(database, mixed) == [True, False, True]
    assert record(database, mixed) == [False, False, False]


def test_one_id_with_two_payloads_in_one_list_is_first_time_twice(database: Database) -> None:
    both = messages("1-0", data=b"one") + messages("1-0", data=b"two")

    assert record(database, both) == [True, True]
    assert record(database, both) == [False, False]


def test_a_second_recording_in_one_transaction_is_refused(database: Database) -> None:
    def record_twice() -> None:
        with DbSession(database.engine) as session, Inbox().once_many(session, messages("1-0", "2-0")):
            Inbox().once_many(session, messages("2-0", "3-0")).__enter__()

    with pytest.raises(LifecycleError, match="already"):
        record_twice()
    assert database.count("conquiet_inbox") == 0


def test_messages_of_several_streams_and_more_than_one_statement_are_recorded(database: Database) -> None:
    many = messages(*(f"{number}-0" for number in range(2_100)))
    many += [QueueMessage("refunds", "billing", "7-0", {}).with_bytes(b"{}")]

    assert all(record(database, many))
    assert not any(record(database, many))


def test_forgotten_messages_are_first_time_again(database: Database) -> None:
    inbox = Inbox()
    with DbSession(database.engine) as session:
        msgs = messages("1-0", "2-0", "3-0")
        with inbox.once_many(session, msgs):
            pass
        inbox.rows.forget(unit_of(session), [msgs[1]])

    assert record(database, msgs) == [False, True, False]


@pytest.mark.parametrize("forgotten", [0, 1])
def test_a_forgotten_message_leaves_the_row_of_another_with_its_key(database: Database, forgotten: int) -> None:
    inbox = Inbox(key=lambda _: "order-7", compare_payload=True)
    msgs = [*messages("1-0", data=b'{"n":1}'), *messages("2-0", data=b'{"n":2}')]
    with DbSession(database.engine) as session:
        with inbox.once_many(session, msgs) as first_time:
            assert first_time == [True, True]
        inbox.rows.forget(unit_of(session), [msgs[forgotten]])

    assert record(database, [msgs[1 - forgotten]], inbox) == [False]
    assert record(database, [msgs[forgotten]], inbox) == [True]


@pytest.mark.parametrize("kind", ["mysql", "sqlite"])  # no version for PostgreSQL made a table without them
def test_a_table_without_digests_is_served_all_the_same(kind: str, make_database: MakeDatabase) -> None:
    database = make_database(kind)
    with database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE conquiet_inbox DROP COLUMN digest"))
    inbox = Inbox()

    assert record(database, messages("1-0", "2-0"), inbox) == [True, True]
    assert record(database, messages("2-0", "3-0"), inbox) == [False, True]


@pytest.mark.parametrize(("kind", "before", "after"), ASYNC, ids=[after for _, _, after in ASYNC])
async def test_an_asynchronous_session_is_given_the_same_answers(
    kind: str, before: str, after: str, make_database: MakeDatabase
) -> None:
    database = make_database(kind)
    engine = create_async_engine(database.url.replace(before, after))
    try:
        async with engine.begin() as connection, Inbox().once_many(connection, messages("1-0", "2-0")) as first_time:
            assert first_time == [True, True]
        msgs = messages("1-0", "3-0", "2-0", "4-0")
        async with engine.begin() as connection, Inbox().once_many(connection, msgs) as first_time:
            assert first_time == [False, True, False, True]
    finally:
        await engine.dispose()


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_a_list_waits_for_the_run_that_has_one_of_its_messages(kind: str, make_database: MakeDatabase) -> None:
    database = make_database(kind)
    recorded, may_commit = threading.Event(), threading.Event()

    def first() -> None:
        with DbSession(database.engine) as session, Inbox().once_many(session, messages("1-0", "2-0")):
            recorded.set()
            assert may_commit.wait(30)

    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(first)
        assert recorded.wait(30)
        second: Future[list[bool]] = threads.submit(record, database, messages("2-0", "3-0"))
        wait_until(lambda: waits(database) or second.done(), interval_s=0.15, message="the second run waits")
        may_commit.set()
        running.result(30)
        try:
            answers = second.result(30)
        except MessageInProgressError:  # MySQL: the lock wait of 2 s ran out on a slow machine
            answers = record(database, messages("2-0", "3-0"))

    assert answers == [False, True]


def waits(database: Database) -> bool:
    query = {
        "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
        "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    }[database.kind]
    with database.engine.connect() as connection:
        return bool(connection.execute(text(query)).scalar_one())
