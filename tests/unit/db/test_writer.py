"""DbWriter on SQLite: insert and update paths, refusals, metrics, secrets."""

import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from conquiet import DbWriter as RootDbWriter
from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy, WriteOutcome
from conquiet.errors import ConfigurationError, DbWriteError, LifecycleError

CANARY = "canary-4711"


def insert(id_value: Any, /, **columns: Any) -> DbOperation:
    return DbOperation("orders", DbOperationType.INSERT, id_value, {"id": id_value, **columns})


def update(id_value: Any, /, **columns: Any) -> DbOperation:
    return DbOperation("orders", DbOperationType.UPDATE, id_value, columns)


def rows(engine: Engine) -> dict[int, Any]:
    with engine.connect() as conn:
        return {row["id"]: dict(row) for row in conn.execute(text("SELECT * FROM orders")).mappings()}


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def writer(sqlite: Engine) -> DbWriter:
    return DbWriter(sqlite, DbConfig("orders"))


@pytest.mark.spec("CQ-005.43", "CQ-005.44", "CQ-001.11", "CQ-006.19")
def test_a_writer_keeps_what_it_was_given_and_locks_only_if_told_to(sqlite: Engine) -> None:
    config = DbConfig("orders")

    writer = DbWriter(sqlite, config)

    assert RootDbWriter is DbWriter
    assert writer.engine is sqlite
    assert writer.db_config is config
    assert writer.lock_strategy is LockStrategy.NONE
    assert writer.lock_backend is None


@pytest.mark.spec("CQ-005.1", "CQ-005.53", "CQ-005.45", "CQ-008.3")
def test_insert_writes_the_payloads_columns(writer: DbWriter, sqlite: Engine) -> None:
    outcome = writer.execute(insert(1, amount=10, status="paid"))

    assert outcome == WriteOutcome(rows=1)
    assert rows(sqlite)[1] | {"amount": 10, "status": "paid"} == rows(sqlite)[1]


@pytest.mark.spec("CQ-005.2", "CQ-005.10", "CQ-005.11", "CQ-008.3")
def test_a_duplicate_is_suppressed_logged_and_counted(
    writer: DbWriter, sqlite: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writer.execute(insert(1, amount=10, email=CANARY))
    counted = sample("conquiet_db_duplicate_inserts_total", table="orders")

    outcome = writer.execute(insert(1, amount=99, email=CANARY))

    assert outcome == WriteOutcome(rows=0, duplicate=True)
    assert rows(sqlite)[1]["amount"] == 10
    assert sample("conquiet_db_duplicate_inserts_total", table="orders") == counted + 1
    (record,) = [record for record in caplog.records if record.getMessage() == "duplicate insert suppressed"]
    assert vars(record)["table"] == "orders"
    assert CANARY not in caplog.text


@pytest.mark.spec("CQ-005.12")
def test_a_duplicate_of_another_unique_key_is_raised(writer: DbWriter, sqlite: Engine) -> None:
    """The row asked for does not exist: suppressing this would lose it."""
    writer.execute(insert(1, email=CANARY))

    with pytest.raises(DbWriteError) as caught:
        writer.execute(insert(2, email=CANARY))

    assert set(rows(sqlite)) == {1}
    assert CANARY not in f"{caught.value} {caught.value!r}"
    assert caught.value.__cause__ is not None


def test_other_integrity_errors_are_raised(writer: DbWriter) -> None:
    with pytest.raises(DbWriteError):
        writer.execute(insert(1, status=None))


@pytest.mark.spec("CQ-005.54", "CQ-008.3")
def test_update_sets_the_columns_of_the_row_with_the_id_except_the_id(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute_many([insert(1, amount=1), insert(2, amount=2)])

    outcome = writer.execute(update(1, id=2, amount=5))

    assert outcome == WriteOutcome(rows=1)
    assert {id_: row["amount"] for id_, row in rows(sqlite).items()} == {1: 5, 2: 2}


def test_a_column_called_like_the_seeds_bind_does_not_move_the_update_to_another_row(
    writer: DbWriter, sqlite: Engine
) -> None:
    writer.execute_many([insert(1, amount=1), insert(2, amount=2)])

    writer.execute(update(1, id_value=2, amount=5))

    assert {id_: row["amount"] for id_, row in rows(sqlite).items()} == {1: 5, 2: 2}
    assert rows(sqlite)[1]["id_value"] == 2


@pytest.mark.spec("CQ-005.55")
@pytest.mark.parametrize("payload", [{}, {"id": 1}])
def test_an_update_of_nothing_changes_nothing(writer: DbWriter, sqlite: Engine, payload: dict[str, Any]) -> None:
    writer.execute(insert(1, amount=1))
    before = rows(sqlite)

    assert writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, payload)) == WriteOutcome(rows=0)
    assert rows(sqlite) == before


def test_an_update_that_matches_no_row_is_no_error(writer: DbWriter) -> None:
    assert writer.execute(update(404, amount=1)) == WriteOutcome(rows=0)


@pytest.mark.spec("CQ-005.47")
@pytest.mark.parametrize("op_type", ["delete", None, "INSERT"])
def test_an_unsupported_operation_type_is_a_write_error(writer: DbWriter, op_type: Any) -> None:
    with pytest.raises(DbWriteError, match="neither INSERT nor UPDATE"):
        writer.execute(DbOperation("orders", op_type, 1, {"id": 1}))


@pytest.mark.spec("CQ-005.5")
def test_metadata_changes_nothing(writer: DbWriter, sqlite: Engine) -> None:
    class Untouchable(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError("metadata was looked at")

        __iter__ = keys = items = values = __len__ = __getitem__  # type: ignore[assignment]

    writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1, "amount": 1}, Untouchable()))
    writer.execute(DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 2}, Untouchable()))

    assert rows(sqlite)[1]["amount"] == 2


@pytest.mark.spec("CQ-005.46", "CQ-003.4")
@pytest.mark.parametrize(
    "op",
    [
        DbOperation("missing", DbOperationType.INSERT, 1, {"id": 1, "email": CANARY}),
        DbOperation("missing", DbOperationType.UPDATE, CANARY, {"email": CANARY}),
        DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1, "no_such_column": CANARY}),
        DbOperation("orders", DbOperationType.INSERT, 1, {"id": 1, "email": object()}),
    ],
)
def test_any_failure_is_a_write_error_with_facts_and_no_value(writer: DbWriter, op: DbOperation) -> None:
    with pytest.raises(DbWriteError) as caught:
        writer.execute(op)

    error = caught.value
    assert (error.table, error.operation) == (op.table, op.op_type.value)
    assert error.__cause__ is not None
    assert CANARY not in f"{error} {error!r} {error.args}"


def test_an_insert_whose_id_and_payload_disagree_is_refused(writer: DbWriter, sqlite: Engine) -> None:
    """The check for "is the row there" would look at another row than the one written."""
    with pytest.raises(DbWriteError, match="different rows"):
        writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {"id": 2}))
    with pytest.raises(DbWriteError, match="no column"):
        writer.execute(DbOperation("orders", DbOperationType.INSERT, 1, {}))
    assert rows(sqlite) == {}


@pytest.mark.spec("CQ-005.48", "CQ-005.49", "CQ-001.12")
def test_writes_are_counted_and_timed_whether_they_succeed_or_fail(writer: DbWriter) -> None:
    def counts() -> tuple[float, float, float]:
        labels = {"table": "orders", "op_type": "insert"}
        return (
            sample("conquiet_db_write_total", status="success", **labels),
            sample("conquiet_db_write_total", status="error", **labels),
            sample("conquiet_db_write_latency_seconds_count", **labels),
        )

    success, error, timed = counts()
    writer.execute(insert(1))
    writer.execute(insert(1))
    with pytest.raises(DbWriteError):
        writer.execute(insert(2, nope=1))
    with pytest.raises(DbWriteError):
        writer.execute_many([insert(3, nope=1), insert(4, nope=1)])
    writer.execute_many([insert(5), insert(6), insert(7, amount=1), insert(8, amount=1)])

    # A batch is timed as the one write that it is; the last one was two.
    assert counts() == (success + 6, error + 3, timed + 6)


# ------------------------------------------------------------------ many
def test_many_keep_their_order_and_count_duplicates_one_by_one(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(2, amount=0))
    counted = sample("conquiet_db_duplicate_inserts_total", table="orders")

    outcomes = writer.execute_many([insert(1), insert(2), insert(3), update(3, amount=7), insert(4), insert(4)])

    new, old = WriteOutcome(rows=1), WriteOutcome(rows=0, duplicate=True)
    assert outcomes == [new, old, new, new, new, old]
    assert set(rows(sqlite)) == {1, 2, 3, 4}
    assert rows(sqlite)[3]["amount"] == 7
    assert sample("conquiet_db_duplicate_inserts_total", table="orders") == counted + 2


def test_all_duplicates_are_told_apart_too(writer: DbWriter) -> None:
    ops = [insert(i) for i in range(5)]
    writer.execute_many(ops)

    assert writer.execute_many(ops) == [WriteOutcome(rows=0, duplicate=True)] * 5


def test_many_say_how_far_they_came_when_one_fails(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(100, email=CANARY))

    with pytest.raises(DbWriteError) as caught:
        writer.execute_many([insert(1), insert(2), update(1, nope=1), insert(3)])
    assert caught.value.completed == 2
    with pytest.raises(DbWriteError) as caught:
        # The second unique key: found out one by one, so the row before it is there.
        writer.execute_many([insert(5, email="a"), insert(6, email=CANARY), insert(7, email="b")])

    assert caught.value.completed == 1
    assert set(rows(sqlite)) == {100, 1, 2, 5}
    assert CANARY not in str(caught.value)


def test_many_of_none_is_nothing(writer: DbWriter) -> None:
    assert writer.execute_many([]) == []


# ------------------------------------------------------------------ modify
@pytest.mark.spec("CQ-005.14")
def test_modify_reads_asks_and_writes(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(1, amount=10))

    outcome = writer.modify(1, lambda row: {"amount": row["amount"] + 1, "id": 99})

    assert outcome == WriteOutcome(rows=1)
    assert rows(sqlite)[1]["amount"] == 11


def test_modify_may_leave_the_row_alone_or_find_none(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(1, amount=10))
    before = rows(sqlite)

    assert writer.modify(1, lambda _: None) == WriteOutcome(rows=0)
    assert writer.modify(1, lambda _: {"id": 5}) == WriteOutcome(rows=0)
    assert writer.modify(404, lambda _: pytest.fail("called without a row")) == WriteOutcome(rows=0)
    assert rows(sqlite) == before


def test_what_change_raises_is_raised_and_nothing_is_written(writer: DbWriter, sqlite: Engine) -> None:
    writer.execute(insert(1, amount=10))

    with pytest.raises(ZeroDivisionError):
        writer.modify(1, lambda _: {"amount": 1 // 0})
    with pytest.raises(ConfigurationError, match="change must return"):
        writer.modify(1, lambda _: 7)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="identifier"):
        writer.modify(1, lambda _: {"amount = 0 --": 1})

    assert rows(sqlite)[1]["amount"] == 10


# ------------------------------------------------------------------ refusals before any I/O
@pytest.mark.parametrize("strategy", [strategy for strategy in LockStrategy if strategy is not LockStrategy.NONE])
def test_a_mysql_lock_on_sqlite_is_refused_before_any_io(strategy: LockStrategy, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/no/such/folder/x.db")

    with pytest.raises(ConfigurationError, match=f"LockStrategy.{strategy.name} is a lock of MySQL"):
        DbWriter(engine, DbConfig("orders"), strategy)


@pytest.mark.spec("CQ-001.2")
def test_other_databases_are_refused() -> None:
    class Postgres:
        name = "postgresql"

    engine = create_engine("sqlite://")
    engine.dialect = Postgres()  # type: ignore[assignment]

    with pytest.raises(ConfigurationError, match="not on postgresql"):
        DbWriter(engine, DbConfig("orders"))


def test_wrong_arguments_are_refused(sqlite: Engine) -> None:
    with pytest.raises(ConfigurationError, match="engine must be"):
        DbWriter("mysql://", DbConfig("orders"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="db_config"):
        DbWriter(sqlite, "orders")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="lock_strategy"):
        DbWriter(sqlite, DbConfig("orders"), "row")  # type: ignore[arg-type]


# ------------------------------------------------------------------ the end
def test_a_closed_writer_refuses_and_leaves_the_engine_open(sqlite: Engine) -> None:
    with DbWriter(sqlite, DbConfig("orders")) as writer:
        writer.execute(insert(1))

    with pytest.raises(LifecycleError):
        writer.execute(insert(2))
    writer.close()  # once more does nothing
    assert set(rows(sqlite)) == {1}


@pytest.mark.parametrize("pool", [SingletonThreadPool, StaticPool])
def test_a_write_beside_an_open_transaction_on_the_one_connection_is_refused(pool: type[Pool]) -> None:
    """SQLite in memory: our COMMIT would commit the session's half, our ROLLBACK would lose it."""
    engine = create_engine("sqlite://", poolclass=pool)
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)"))
    writer = DbWriter(engine, DbConfig("orders"))

    with DbSession(engine) as session:
        session.execute("INSERT INTO orders (id) VALUES (1)")
        for attempt in (
            lambda: writer.execute(insert(2)),
            lambda: writer.execute_many([insert(2), insert(3)]),
            lambda: writer.modify(1, lambda _: {"amount": 1}),
        ):
            with pytest.raises(DbWriteError, match=r"on orders failed: .* transaction is open on it; end that first"):
                attempt()
        session.execute("INSERT INTO orders (id) VALUES (4)")
    assert set(rows(engine)) == {1, 4}

    with pytest.raises(ZeroDivisionError), DbSession(engine) as session:  # noqa: PT012 - the block is the session's
        session.execute("INSERT INTO orders (id) VALUES (5)")
        with pytest.raises(DbWriteError):
            writer.execute(insert(6))
        _ = 1 / 0
    writer.execute(insert(7))
    assert set(rows(engine)) == {1, 4, 7}
    engine.dispose()
