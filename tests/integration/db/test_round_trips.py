"""The statements that are sent to the server, as its own log shows them."""

import re
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import Connection

from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy
from conquiet.db.writer_pool import writer_pool_of

Statements = Callable[[], list[str]]

GET, RELEASE = "SELECT GET_LOCK", "SELECT RELEASE_LOCK"
LOCKING_READ = "SELECT `id` FROM `orders` WHERE `id` = 1 FOR UPDATE"
UPDATE = "UPDATE `orders` SET `amount` ="


def shapes(sent: list[str]) -> list[str]:
    """Statements cut down to what the tests are about."""
    known = (GET, RELEASE, UPDATE, "LOCK TABLES `orders` WRITE", "INSERT INTO `orders`")
    return [next((shape for shape in known if statement.startswith(shape)), statement) for statement in sent]


def ready(engine: Engine, strategy: LockStrategy, statements: Statements, op_type: DbOperationType) -> DbWriter:
    """A writer with an open connection in the right mode."""
    writer = DbWriter(engine, DbConfig("orders"), strategy)
    writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1}))
    if op_type is DbOperationType.UPDATE:
        writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": -1}))
    statements()
    return writer


@pytest.mark.spec("CQ-005.8", "CQ-005.9", "CQ-005.51", "CQ-005.53")
@pytest.mark.parametrize("strategy", LockStrategy)
def test_an_insert_is_one_statement_and_no_lock_whatever_the_strategy(
    engine: Engine, statements: Statements, strategy: LockStrategy
) -> None:
    writer = ready(engine, strategy, statements, DbOperationType.INSERT)

    writer.execute(DbOperation("orders", DbOperationType.INSERT, 2, {"id": 2, "amount": 5}))

    assert statements() == ["INSERT INTO `orders` (`id`, `amount`) VALUES (2, 5)"]
    writer.execute(DbOperation("orders", DbOperationType.INSERT, 2, {"id": 2, "amount": 6}))  # a duplicate
    assert statements() == [
        "INSERT INTO `orders` (`id`, `amount`) VALUES (2, 6)",
        "SELECT `id` FROM `orders` WHERE `id` = 2",
    ]
    writer.execute_many([DbOperation("orders", DbOperationType.INSERT, i, {"id": i}) for i in (3, 4)])
    assert statements() == ["INSERT INTO `orders` (`id`) VALUES (3), (4)"]


@pytest.mark.spec(
    "CQ-005.13", "CQ-005.17", "CQ-005.21", "CQ-005.24", "CQ-005.26", "CQ-005.29", "CQ-005.30", "CQ-005.57", "CQ-005.58"
)
@pytest.mark.parametrize("traced", [False, True], ids=["direct", "with a listener"])
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (LockStrategy.NONE, [UPDATE]),
        (LockStrategy.ROW, [LOCKING_READ, UPDATE, "COMMIT"]),
        (LockStrategy.ADVISORY, [GET, UPDATE, RELEASE]),  # the statement is the transaction: decision 0001
        (LockStrategy.ADVISORY_AND_ROW, [GET, LOCKING_READ, UPDATE, "COMMIT", RELEASE]),
        (LockStrategy.TABLE, ["LOCK TABLES `orders` WRITE", UPDATE, "COMMIT", "UNLOCK TABLES"]),
    ],
)
def test_an_update_locks_writes_commits_and_only_then_releases(
    engine: Engine, statements: Statements, strategy: LockStrategy, expected: list[str], *, traced: bool
) -> None:
    """The seed releases before it commits; on real servers that loses updates (decision 0001)."""
    if traced:  # then statements, COMMIT and ROLLBACK take the way through SQLAlchemy
        event.listen(engine, "before_cursor_execute", lambda *_: None)
    writer = ready(engine, strategy, statements, DbOperationType.UPDATE)
    op = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 5})

    writer.execute(op)
    alone = shapes(statements())
    writer.execute_many([op, op])

    assert alone == expected
    assert shapes(statements()) == expected * 2


@pytest.mark.spec("CQ-005.17", "CQ-005.18")
@pytest.mark.parametrize("strategy", LockStrategy)
def test_lock_write_commit_and_release_are_sent_on_one_connection(
    engine: Engine, admin: Connection, statements: Statements, strategy: LockStrategy
) -> None:
    writer = ready(engine, strategy, statements, DbOperationType.UPDATE)
    own = admin.execute(text("SELECT CONNECTION_ID()")).scalar()
    op = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 5})

    writes: list[Callable[[], object]] = [
        lambda: writer.execute(op),
        lambda: writer.modify(1, lambda row: {"amount": row["amount"] + 1}),
    ]

    for write in writes:
        write()
        logged = text("SELECT DISTINCT thread_id FROM mysql.general_log WHERE thread_id <> :own")
        assert len(admin.execute(logged, {"own": own}).all()) == 1
        statements()


@pytest.mark.spec(
    "CQ-005.13", "CQ-005.16", "CQ-005.17", "CQ-005.21", "CQ-005.24", "CQ-005.29", "CQ-005.30", "CQ-005.57", "CQ-005.58"
)
@pytest.mark.parametrize("traced", [False, True], ids=["direct", "with a listener"])
@pytest.mark.parametrize(
    ("strategy", "before", "read", "after"),
    [
        (LockStrategy.NONE, [], "SELECT * FROM `orders` WHERE `id` = 1", ["COMMIT"]),
        (LockStrategy.ROW, [], "SELECT * FROM `orders` WHERE `id` = 1 FOR UPDATE", ["COMMIT"]),
        (LockStrategy.ADVISORY, [GET], "SELECT * FROM `orders` WHERE `id` = 1 FOR UPDATE", ["COMMIT", RELEASE]),
        (LockStrategy.ADVISORY_AND_ROW, [GET], "SELECT * FROM `orders` WHERE `id` = 1 FOR UPDATE", ["COMMIT", RELEASE]),
        (
            LockStrategy.TABLE,
            ["LOCK TABLES `orders` WRITE"],
            "SELECT * FROM `orders` WHERE `id` = 1 FOR UPDATE",
            ["COMMIT", "UNLOCK TABLES"],
        ),
    ],
)
def test_modify_reads_after_the_lock_and_no_statement_more(
    engine: Engine,
    statements: Statements,
    strategy: LockStrategy,
    before: list[str],
    read: str,
    after: list[str],
    *,
    traced: bool,
) -> None:
    if traced:
        event.listen(engine, "before_cursor_execute", lambda *_: None)
    writer = ready(engine, strategy, statements, DbOperationType.UPDATE)
    writer.modify(1, lambda row: {"amount": row["amount"]})  # now the connection is in the right mode
    statements()

    writer.modify(1, lambda row: {"amount": row["amount"] + 1})

    assert shapes(statements()) == [*before, read, UPDATE, *after]
    with pytest.raises(ZeroDivisionError):
        writer.modify(1, lambda row: {"amount": row["amount"] // 0})
    given_up = ["ROLLBACK" if statement == "COMMIT" else statement for statement in after]
    assert shapes(statements()) == [*before, read, *given_up]


def test_an_update_under_an_advisory_lock_keeps_the_connections_mode(engine: Engine, statements: Statements) -> None:
    """In either mode it commits before it releases; switching would cost the round trip that it saves."""
    writer = ready(engine, LockStrategy.ADVISORY, statements, DbOperationType.INSERT)

    writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 5}))
    after_an_insert = shapes(statements())
    writer.modify(1, lambda row: {"amount": row["amount"] + 1})
    statements()
    writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 7}))

    assert after_an_insert == [GET, UPDATE, RELEASE]
    assert shapes(statements()) == [GET, UPDATE, "COMMIT", RELEASE]


def test_many_inserts_are_one_statement(engine: Engine, statements: Statements) -> None:
    writer = ready(engine, LockStrategy.ROW, statements, DbOperationType.INSERT)

    writer.execute_many([DbOperation("orders", DbOperationType.INSERT, i, {"id": i}) for i in range(10, 210)])

    assert shapes(statements()) == ["INSERT INTO `orders`"]


def test_the_lock_name_that_reaches_the_server_fits_every_server(engine: Engine, statements: Statements) -> None:
    writer = ready(engine, LockStrategy.ADVISORY, statements, DbOperationType.UPDATE)

    writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 5}))

    got, _, released = statements()
    (name,) = re.findall(r"GET_LOCK\('([^']+)', 10\)", got)
    assert f"RELEASE_LOCK('{name}')" in released
    assert len(name) == 64
    assert name.startswith("conquiet_lock:")


def test_the_callers_pool_is_neither_used_nor_changed(engine: Engine) -> None:
    """Autocommit and a missing reset on the caller's connections would change the caller's transactions."""
    checkouts: list[object] = []
    engine.dispose()
    before = engine.pool.status()
    writer = DbWriter(engine, DbConfig("orders"), LockStrategy.ROW)

    writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1}))
    writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 2}))

    assert engine.pool.status() == before
    event.listen(engine, "checkout", lambda *_: checkouts.append(1))
    with engine.connect() as conn:
        conn.execute(text("INSERT INTO orders (id) VALUES (2)"))  # rolled back: not in autocommit mode
    assert len(checkouts) == 1
    with DbSession(engine) as session:
        assert session.fetch_all("SELECT id, amount FROM orders") == [{"id": 1, "amount": 2}]


def test_listeners_of_the_callers_engine_see_the_writer_too(engine: Engine) -> None:
    """Tracing is attached to engines; a writer that it cannot see would be a blind spot."""
    seen: list[str] = []
    writer = DbWriter(engine, DbConfig("orders"))
    writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1}))
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))

    writer.execute(DbOperation("orders", DbOperationType.INSERT, 2, {"id": 2}))

    assert [statement.split(" VALUES")[0] for statement in seen] == ["INSERT INTO `orders` (`id`)"]


@pytest.mark.spec("CQ-001.15")
def test_an_engines_writers_share_connections_closed_with_the_last_writer(engine: Engine) -> None:
    first, second = (DbWriter(engine, DbConfig("orders")) for _ in range(2))
    for i, writer in enumerate((first, second)):
        writer.execute(DbOperation("orders", DbOperationType.INSERT, i, {"id": i}))
    assert "Connections in pool: 1" in writer_pool_of(engine).pool_status

    first.close()
    assert "Connections in pool: 1" in writer_pool_of(engine).pool_status
    second.close()
    assert writer_pool_of(engine).pool_status == "not opened"


def test_disposing_of_the_engine_closes_the_writers_connections(engine: Engine) -> None:
    writer = DbWriter(engine, DbConfig("orders"))
    writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1}))

    engine.dispose()

    assert writer_pool_of(engine).pool_status == "not opened"
    writer.execute(DbOperation("orders", DbOperationType.INSERT, 2, {"id": 2}))
