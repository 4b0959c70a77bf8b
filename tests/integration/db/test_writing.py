"""DbWriter on real servers: the table afterwards, and the errors."""

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import (
    DbOperation,
    DbOperationType,
    DbSession,
    DbWriter,
    LockStrategy,
    WriteOutcome,
    insert_idempotent,
)
from conquiet.errors import ConfigurationError, DbWriteError

CANARY = "canary-4711"


def insert(id_value: Any, /, **columns: Any) -> DbOperation:
    return DbOperation("orders", DbOperationType.INSERT, id_value, {"id": id_value, **columns})


def update(id_value: Any, /, **columns: Any) -> DbOperation:
    return DbOperation("orders", DbOperationType.UPDATE, id_value, columns)


def amounts(admin: Connection) -> dict[int, int]:
    return {row.id: row.amount for row in admin.execute(text("SELECT id, amount FROM orders"))}


@pytest.mark.spec("CQ-005.1", "CQ-005.2", "CQ-005.9", "CQ-005.10", "CQ-005.11", "CQ-005.12")
def test_inserting_twice_keeps_the_first_row_and_says_so(
    engine: Engine, admin: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="conquiet")
    writer = DbWriter(engine, DbConfig("orders"))

    outcomes = [writer.execute(insert(1, amount=amount, email=CANARY)) for amount in (10, 99)]

    assert outcomes == [WriteOutcome(rows=1), WriteOutcome(rows=0, duplicate=True)]
    assert amounts(admin) == {1: 10}
    assert [record.getMessage()[:27] for record in caplog.records] == ["duplicate insert suppressed"]
    assert CANARY not in str([vars(record) for record in caplog.records])


@pytest.mark.spec("CQ-005.10", "CQ-005.12")
def test_a_duplicate_of_another_unique_key_is_raised_in_batches_too(engine: Engine, admin: Connection) -> None:
    writer = DbWriter(engine, DbConfig("orders"))
    writer.execute(insert(1, email=CANARY))

    for attempt in (
        lambda: writer.execute(insert(2, email=CANARY)),
        lambda: writer.execute_many([insert(2, email=CANARY), insert(3, email="other")]),
    ):
        with pytest.raises(DbWriteError) as caught:
            attempt()
        assert (caught.value.errno, caught.value.table, caught.value.operation) == (1062, "orders", "insert")
        assert CANARY not in f"{caught.value} {caught.value!r}"
        assert CANARY in str(caught.value.__cause__)  # the driver quotes it, so it is the cause only
    assert set(amounts(admin)) == {1}


@pytest.mark.spec("CQ-005.56")
def test_an_insert_is_a_transaction_all_or_nothing(engine: Engine, admin: Connection) -> None:
    """One statement in autocommit mode: what its trigger had written goes with it when it fails."""
    admin.execute(text("CREATE TABLE audit (n INT) ENGINE=InnoDB"))
    admin.execute(
        text(
            "CREATE TRIGGER guard AFTER INSERT ON orders FOR EACH ROW BEGIN "
            "INSERT INTO audit VALUES (NEW.id); "
            "IF NEW.amount < 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'negative'; END IF; END"
        )
    )
    writer = DbWriter(engine, DbConfig("orders"))

    writer.execute(insert(1, amount=1))
    with pytest.raises(DbWriteError):
        writer.execute(insert(2, amount=-1))
    with pytest.raises(DbWriteError):
        writer.execute_many([insert(3, amount=1), insert(4, amount=-1)])

    assert amounts(admin) == {1: 1}
    assert admin.execute(text("SELECT n FROM audit")).scalars().all() == [1]


HOSTILE = """'; DROP TABLE orders; -- " \\' %s %(p0)s :p0 {0} \\"""


@pytest.mark.spec("CQ-005.53", "CQ-005.54")
@pytest.mark.parametrize("traced", [False, True], ids=["direct", "with a listener"])
@pytest.mark.parametrize("strategy", [LockStrategy.NONE, LockStrategy.ADVISORY_AND_ROW])
def test_no_value_becomes_a_part_of_a_statement(
    engine: Engine, admin: Connection, strategy: LockStrategy, *, traced: bool
) -> None:
    """Values, ids and the values of a batch: each is read as it was written, and changes nothing else."""
    admin.execute(text("CREATE TABLE notes (id VARCHAR(200) PRIMARY KEY, body VARCHAR(200), n INT)"))
    if traced:
        event.listen(engine, "before_cursor_execute", lambda *_: None)
    writer = DbWriter(engine, DbConfig("notes"), strategy)

    def op(kind: DbOperationType, id_value: str, **columns: Any) -> DbOperation:
        return DbOperation("notes", kind, id_value, columns)

    ids = [f"{number}{HOSTILE}" for number in range(4)]
    first, *more = [op(DbOperationType.INSERT, one, id=one, body=HOSTILE, n=0) for one in ids]
    assert writer.execute(first).rows == 1
    assert [outcome.rows for outcome in writer.execute_many([*more, first])] == [1, 1, 1, 0]
    assert writer.execute(op(DbOperationType.UPDATE, ids[1], body=HOSTILE + "updated")).rows == 1
    assert writer.modify(ids[2], lambda row: {"body": row["body"] + "modified"}).rows == 1
    with DbSession(engine) as session:
        assert not insert_idempotent(session, "notes", ids[0], {"body": HOSTILE})
        assert insert_idempotent(session, "notes", "5" + HOSTILE, {"body": HOSTILE, "n": 5})

    bodies = {row.id: row.body for row in admin.execute(text("SELECT id, body FROM notes"))}
    assert bodies == {
        ids[0]: HOSTILE,
        ids[1]: HOSTILE + "updated",
        ids[2]: HOSTILE + "modified",
        ids[3]: HOSTILE,
        "5" + HOSTILE: HOSTILE,
    }


@pytest.mark.spec("CQ-005.54")
def test_an_update_to_the_same_value_still_matches_its_row(engine: Engine) -> None:
    writer = DbWriter(engine, DbConfig("orders"))
    writer.execute(insert(1, amount=5))

    assert writer.execute(update(1, amount=5)) == WriteOutcome(rows=1)
    assert writer.execute(update(404, amount=5)) == WriteOutcome(rows=0)


@pytest.mark.spec("CQ-005.13", "CQ-005.14", "CQ-005.16")
@pytest.mark.parametrize("strategy", LockStrategy)
def test_every_strategy_updates_modifies_and_finds_no_row(
    engine: Engine, admin: Connection, strategy: LockStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    writer = DbWriter(engine, DbConfig("orders"), strategy)
    writer.execute_many([insert(1, amount=1), insert(2, amount=2)])

    assert writer.execute(update(1, amount=10, id=2, id_value=2)) == WriteOutcome(rows=1)
    assert writer.modify(1, lambda row: {"amount": row["amount"] + 1}) == WriteOutcome(rows=1)
    assert writer.modify(1, lambda _: None) == WriteOutcome(rows=0)
    assert writer.modify(404, lambda _: pytest.fail("there is no row")) == WriteOutcome(rows=0)
    assert writer.execute(update(404, amount=1)) == WriteOutcome(rows=0)
    with pytest.raises(ZeroDivisionError):
        writer.modify(2, lambda row: {"amount": row["amount"] // 0})

    admin.execute(text("SELECT id FROM orders FOR UPDATE NOWAIT"))  # the closed connection keeps no lock
    assert amounts(admin) == {1: 11, 2: 2}
    assert caplog.messages == []  # no lock was released that was not held


def test_a_schema_may_be_named(engine: Engine, admin: Connection) -> None:
    table = f"{engine.url.database}.orders"
    for strategy in LockStrategy:
        writer = DbWriter(engine, DbConfig(table), strategy)
        writer.execute(DbOperation(table, DbOperationType.INSERT, 1, {"id": 1}))
        writer.modify(1, lambda row: {"amount": row["amount"] + 1})

    assert amounts(admin) == {1: len(LockStrategy)}


@pytest.mark.spec("CQ-005.46")
def test_no_error_and_no_log_line_shows_a_value(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    writer = DbWriter(engine, DbConfig("orders"), LockStrategy.ADVISORY_AND_ROW)
    writer.execute(insert(1, email=CANARY))
    attempts: list[Callable[[], object]] = [
        lambda: writer.execute(insert(2, email=CANARY)),  # unique
        lambda: writer.execute(insert(3, status=None, email=CANARY + "2")),  # not null
        lambda: writer.execute(insert(4, status=CANARY * 10)),  # too long
        lambda: writer.execute(update(1, amount=CANARY)),  # not a number
        lambda: writer.execute(insert(CANARY)),  # the id itself
    ]

    for attempt in attempts:
        with pytest.raises(DbWriteError) as caught:
            attempt()
        assert CANARY not in f"{caught.value} {caught.value!r} {vars(caught.value)}"
        assert caught.value.__cause__ is not None
    assert CANARY not in caplog.text


def test_threads_may_share_a_writer(make_engine: Callable[..., Engine], engine: Engine, admin: Connection) -> None:
    shared = DbWriter(make_engine(str(engine.url), pool_size=2, max_overflow=2), DbConfig("orders"), LockStrategy.ROW)
    shared.execute(insert(1))

    def work() -> None:
        for _ in range(20):
            shared.modify(1, lambda row: {"amount": row["amount"] + 1})

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert amounts(admin) == {1: 160}


def test_a_forked_child_opens_connections_of_its_own(engine: Engine, admin: Connection) -> None:
    """Two processes that share one socket read each other's replies."""
    writer = DbWriter(engine, DbConfig("orders"), LockStrategy.ROW)
    writer.execute(insert(1))

    def in_child() -> None:
        writer.modify(1, lambda row: {"amount": row["amount"] + 1, "status": f"pid {os.getpid()}"})
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join(60)

    assert child.exitcode == 0
    writer.modify(1, lambda row: {"amount": row["amount"] + 1})
    assert amounts(admin) == {1: 2}
    assert admin.execute(text("SELECT status FROM orders")).scalar() == f"pid {child.pid}"


def test_a_server_that_is_not_there_is_a_write_error_without_credentials(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(f"mysql+pymysql://root:{CANARY}@127.0.0.1:1/nothing")

    with pytest.raises(DbWriteError) as caught:
        DbWriter(engine, DbConfig("orders")).execute(insert(1))
    assert caught.value.errno in {2002, 2003}
    assert CANARY not in str(caught.value)
    with pytest.raises(DbWriteError), DbSession(engine):
        pass


def test_a_session_on_an_autocommit_engine_is_refused_and_a_writer_copes(
    make_engine: Callable[..., Engine], engine: Engine, admin: Connection
) -> None:
    autocommitting = make_engine(str(engine.url), isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"), DbSession(autocommitting):
        pass

    for source in (autocommitting, engine.execution_options(isolation_level="AUTOCOMMIT")):
        writer = DbWriter(source, DbConfig("orders"), LockStrategy.ROW)
        writer.execute(insert(1))
        with pytest.raises(ZeroDivisionError):
            writer.modify(1, lambda _: {"amount": 1 // 0})
        writer.modify(1, lambda row: {"amount": row["amount"] + 1})
    assert amounts(admin) == {1: 2}
