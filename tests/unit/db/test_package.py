"""The package as a whole: its files, its names, its imports, and the rules of every way to write."""

import ast
import importlib
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.pool import QueuePool
from tests.hidden_modules import run_hiding
from tests.unit.db.operations import insert, rows, sample, update

import conquiet
import conquiet.db
from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbSession, DbWriter, insert_idempotent, occ_update
from conquiet.db.locking import LockBackend
from conquiet.errors import DbWriteError

PACKAGE = Path(conquiet.__file__).parent / "db"

CANARY = "canary-4711"


TIMED = ("conquiet_db_write_latency_seconds_count",)


UPDATES = {"table": "orders", "op_type": "update"}


Write = Callable[[DbWriter], object]


def in_session(writer: DbWriter, work: Callable[[DbSession], object]) -> None:
    with DbSession(writer.engine) as session:
        work(session)


GOOD: dict[str, tuple[str, Write, int]] = {
    # the row, the way it is written, and the number of writes
    "insert": ("insert", lambda w: w.execute(insert(10)), 1),
    "insert, a duplicate": ("insert", lambda w: w.execute(insert(1)), 1),
    "insert, many": ("insert", lambda w: w.execute_many([insert(10), insert(11), insert(12)]), 3),
    "update": ("update", lambda w: w.execute(update(1, amount=5)), 1),
    "update of no row": ("update", lambda w: w.execute(update(77, amount=5)), 1),
    "update, many": ("update", lambda w: w.execute_many([update(1, amount=5), update(2, amount=5)]), 2),
    "modify": ("update", lambda w: w.modify(1, lambda row: {"amount": 6}), 1),
    "insert_idempotent": ("insert", lambda w: in_session(w, lambda s: insert_idempotent(s, "orders", 10, {})), 1),
    "occ_update": (
        "update",
        lambda w: in_session(w, lambda s: occ_update(s, "orders", 1, {"amount": 3}, expected_version=1)),
        1,
    ),
}


BAD: dict[str, tuple[str, Write]] = {
    "insert": ("insert", lambda w: w.execute(insert(10, nope=CANARY))),
    "insert, many": ("insert", lambda w: w.execute_many([insert(10, nope=CANARY), insert(11, nope=CANARY)])),
    "insert of another key": ("insert", lambda w: w.execute(insert(10, email="a"))),
    "update": ("update", lambda w: w.execute(update(1, nope=CANARY))),
    "update, many": ("update", lambda w: w.execute_many([update(1, nope=CANARY)])),
    "modify": ("update", lambda w: w.modify(1, lambda row: {"nope": CANARY})),
    "insert_idempotent": (
        "insert",
        lambda w: in_session(w, lambda s: insert_idempotent(s, "orders", 10, {"nope": CANARY})),
    ),
    "occ_update": (
        "update",
        lambda w: in_session(w, lambda s: occ_update(s, "orders", 1, {"nope": CANARY}, expected_version=1)),
    ),
    "occ_update of another version": (
        "update",
        lambda w: in_session(w, lambda s: occ_update(s, "orders", 1, {"amount": 3}, expected_version=9)),
    ),
}


DUPLICATES: dict[str, Write] = {
    "execute": lambda w: w.execute(insert(1, email=CANARY)),
    "execute_many": lambda w: w.execute_many([insert(10), insert(1), insert(11)]),
    "insert_idempotent": lambda w: in_session(w, lambda s: insert_idempotent(s, "orders", 1, {"email": CANARY})),
}


@pytest.fixture
def filled(writer: DbWriter) -> DbWriter:
    writer.execute_many([insert(1, amount=1, email="a"), insert(2, amount=1, email="b")])
    return writer


def counted(operation: str, status: str) -> float:
    return sample("conquiet_db_write_total", table="orders", op_type=operation, status=status)


class Forbidden(LockBackend):
    """A lock that nothing may touch."""

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        raise AssertionError("a lock was acquired")

    def release(self, conn: Connection, op: DbOperation) -> None:
        raise AssertionError("a lock was released")


BUILDERS = {"insert", "update", "select", "delete", "union", "union_all", "exists", "values", "declarative_base"}


# Modules that describe the tables for a migration tool; they make no statement that reads or writes a row.
DESCRIBES_TABLES = {"transactional/metadata.py", "transactional/migrations.py"}


def builders_in(source: str) -> set[str]:
    """Return what a module takes from SQLAlchemy, in any form of import, to build statements without their text."""
    tree = ast.parse(source)
    modules: set[str] = set()
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                taken = [name for name in node.names if name.name.split(".")[0] == "sqlalchemy"]
                modules |= {(name.asname or name.name).split(".")[0] for name in taken}
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "sqlalchemy":
                found |= {name.name for name in node.names} & (BUILDERS | {"Table", "*"})
                modules |= {name.asname or name.name for name in node.names if name.name in {"sql", "dialects"}}
            case _:
                pass
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in BUILDERS | {"Table"}:
            root: ast.expr = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in modules:
                found.add(node.attr)
    return found


@pytest.mark.spec("CQ-002.2", "CQ-002.3", "CQ-009.1")
def test_the_files_of_the_seeds_layout_are_there() -> None:
    for name in ("__init__.py", "models.py", "writer.py", "metrics.py"):
        assert (PACKAGE / name).is_file(), name
    for name in ("__init__", "base", "strategy", "advisory_mysql", "row_mysql", "table_mysql", "composite"):
        assert (PACKAGE / "locking" / f"{name}.py").is_file(), name


@pytest.mark.spec("CQ-000.2", "QC-001.17")
def test_the_package_works_without_any_broker_installed() -> None:
    """Through the root names too; and with a real write."""
    result = run_hiding(
        "redis",
        "hiredis",
        "pika",
        "nacl",
        "msgspec",
        "pymysql",
        "typer",
        code=(
            "from sqlalchemy import create_engine\n"
            "from conquiet import DbConfig, DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy\n"
            "engine = create_engine('sqlite://')\n"
            "with DbSession(engine) as session: session.execute('CREATE TABLE t (id INTEGER PRIMARY KEY)')\n"
            "print(DbWriter(engine, DbConfig('t')).execute(DbOperation('t', DbOperationType.INSERT, 1, {'id': 1})))\n"
            "import sys; print(sorted({'redis', 'pika'} & set(sys.modules)))"
        ),
    )

    assert result.stdout.splitlines() == ["WriteOutcome(rows=1, duplicate=False)", "[]"], result.stderr


def test_without_sqlalchemy_it_says_what_to_install() -> None:
    code = "import conquiet.core.extras as extras; extras.find_spec = lambda name: None; import conquiet.db"

    result = run_hiding(code=code)

    assert "pip install 'conquiet[mysql]'" in result.stderr


@pytest.mark.spec("CQ-001.4", "CQ-005.51")
def test_statements_are_texts_of_raw_sql_and_no_insert_ignores_or_upserts() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))

    assert not re.search(r"sqlalchemy\.orm|from sqlalchemy import .*\b(insert|update|select|Table)\b", sources)
    # Compiled from a text once, then sent as it is: in one place.
    senders = [path.name for path in PACKAGE.rglob("*.py") if "exec_driver_sql" in path.read_text()]
    assert senders == ["statement_execution.py"]
    assert not re.search(r'"[^"]*(INSERT IGNORE INTO|ON DUPLICATE KEY|REPLACE INTO)', sources)


@pytest.mark.spec("CQ-001.3")
def test_the_package_takes_a_sqlalchemy_engine() -> None:
    from inspect import signature

    from sqlalchemy import Engine

    assert signature(conquiet.db.DbWriter).parameters["engine"].annotation is Engine
    assert signature(conquiet.db.DbSession).parameters["engine"].annotation is Engine


def test_every_exported_name_resolves() -> None:
    for name in importlib.import_module("conquiet.db").__all__:
        assert getattr(conquiet.db, name) is not None


@pytest.mark.spec("CQ-005.48", "CQ-005.49", "CQ-001.12")
@pytest.mark.parametrize("way", GOOD)
def test_every_write_that_succeeds_is_counted_once_and_timed(filled: DbWriter, way: str) -> None:
    operation, write, number = GOOD[way]
    timed_by = {"table": "orders", "op_type": operation}
    before = counted(operation, "success"), counted(operation, "error")
    timed = sample("conquiet_db_write_latency_seconds_count", **timed_by)

    write(filled)

    assert (counted(operation, "success"), counted(operation, "error")) == (before[0] + number, before[1])
    assert sample("conquiet_db_write_latency_seconds_count", **timed_by) > timed


@pytest.mark.spec("CQ-005.48", "CQ-005.49", "CQ-003.4", "CQ-001.12")
@pytest.mark.parametrize("way", BAD)
def test_every_failed_write_is_a_counted_write_error_that_quotes_nothing(
    filled: DbWriter, sqlite: Engine, way: str
) -> None:
    operation, write = BAD[way]
    before, kept = (counted(operation, "success"), counted(operation, "error")), rows(sqlite)
    timed = sample("conquiet_db_write_latency_seconds_count", table="orders", op_type=operation)

    with pytest.raises(DbWriteError) as caught:
        write(filled)

    assert sample("conquiet_db_write_latency_seconds_count", table="orders", op_type=operation) > timed

    assert counted(operation, "success") == before[0]
    assert counted(operation, "error") > before[1]
    assert rows(sqlite) == kept
    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value)


@pytest.mark.spec("CQ-005.48", "CQ-005.49")
@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt])
def test_a_change_that_raises_is_a_failed_write_counted_and_timed(
    filled: DbWriter, raised: type[BaseException]
) -> None:
    before, timed = counted("update", "error"), sample(*TIMED, **UPDATES)

    def change(_: object) -> None:
        raise raised

    with pytest.raises(raised):
        filled.modify(1, change)

    assert counted("update", "error") == before + 1
    assert sample(*TIMED, **UPDATES) == timed + 1


@pytest.mark.spec("CQ-001.3")
@pytest.mark.parametrize("way", GOOD)
def test_every_way_to_write_takes_its_connections_from_the_engine(filled: DbWriter, sqlite: Engine, way: str) -> None:
    taken: list[object] = []
    event.listen(sqlite, "checkout", lambda connection, *_: taken.append(connection))
    opened: list[object] = []
    event.listen(sqlite, "connect", lambda connection, _: opened.append(connection))

    GOOD[way][1](filled)

    assert taken
    assert opened == []  # the pool had one
    assert isinstance(sqlite.pool, QueuePool)
    assert sqlite.pool.checkedout() == 0


@pytest.mark.spec("CQ-005.11")
@pytest.mark.parametrize("way", DUPLICATES)
def test_every_suppressed_duplicate_is_logged_and_counted(
    filled: DbWriter, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    caplog.set_level(logging.INFO, "conquiet.db")
    before = sample("conquiet_db_duplicate_inserts_total", table="orders")

    DUPLICATES[way](filled)

    assert sample("conquiet_db_duplicate_inserts_total", table="orders") == before + 1
    (line,) = [record for record in caplog.records if record.getMessage().startswith("duplicate insert suppressed")]
    assert vars(line)["table"] == "orders"
    assert CANARY not in caplog.text


@pytest.mark.spec("CQ-005.8")
@pytest.mark.parametrize("way", ["insert", "insert, a duplicate", "insert, many", "insert_idempotent"])
def test_no_way_to_insert_touches_the_lock(sqlite: Engine, way: str) -> None:
    writer = DbWriter(sqlite, DbConfig("orders"))
    writer.execute(insert(1))
    writer.lock_backend = Forbidden()
    GOOD[way][1](writer)
    with pytest.raises(DbWriteError) as caught:  # an update does: the lock is not idle
        writer.execute(update(1, amount=2))
    assert isinstance(caught.value.__cause__, AssertionError)


@pytest.mark.spec("CQ-005.47")
@pytest.mark.parametrize("op_type", ["delete", None, "INSERT"])
def test_an_unsupported_operation_among_many_is_an_error_after_what_came_before(
    filled: DbWriter, sqlite: Engine, op_type: Any
) -> None:
    with pytest.raises(DbWriteError, match="neither INSERT nor UPDATE") as caught:
        filled.execute_many([insert(10), DbOperation("orders", op_type, 1, {"id": 1}), insert(11)])

    assert caught.value.completed == 1
    assert set(rows(sqlite)) == {1, 2, 10}


@pytest.mark.spec("CQ-005.55")
@pytest.mark.parametrize("payload", [{}, {"id": 1}, {"ID": 1}])
def test_no_way_to_update_nothing_changes_or_locks_anything(
    filled: DbWriter, sqlite: Engine, payload: dict[str, Any]
) -> None:
    before = rows(sqlite)

    assert filled.modify(1, lambda row: payload).rows == 0
    filled.lock_backend = Forbidden()
    op = DbOperation("orders", DbOperationType.UPDATE, 1, payload)
    assert [one.rows for one in [filled.execute(op), *filled.execute_many([op, op])]] == [0, 0, 0]

    assert rows(sqlite) == before


@pytest.mark.spec("CQ-005.5")
def test_no_way_to_write_looks_at_the_metadata(filled: DbWriter, sqlite: Engine) -> None:
    class Untouchable(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError("metadata was looked at")

        __iter__ = keys = items = values = __len__ = __getitem__  # type: ignore[assignment]

    ops = [DbOperation("orders", DbOperationType.INSERT, n, {"id": n}, Untouchable()) for n in (10, 11, 1, 12)]
    ops.append(DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 7}, Untouchable()))

    assert [one.rows for one in filled.execute_many(ops)] == [1, 1, 0, 1, 1]
    together = [DbOperation("orders", DbOperationType.INSERT, n, {"id": n}, Untouchable()) for n in range(20, 23)]
    assert [one.rows for one in filled.execute_many(together)] == [1, 1, 1]

    assert rows(sqlite)[1]["amount"] == 7


@pytest.mark.spec("CQ-001.4")
@pytest.mark.parametrize(
    "source",
    [
        "from sqlalchemy import Engine, select",
        "from sqlalchemy import (\n    Engine,\n    delete as remove,\n)",
        "from sqlalchemy.sql import update",
        "from sqlalchemy.dialects.mysql import insert",
        "from sqlalchemy.orm import declarative_base",
        "import sqlalchemy as sa\nsa.insert(table)",
        "import sqlalchemy.sql\nsqlalchemy.sql.select(table)",
        "from sqlalchemy import sql\nsql.select(table)",
        "from sqlalchemy import *",
    ],
)
def test_every_way_to_import_a_builder_of_statements_is_found(source: str) -> None:
    assert builders_in(source)


@pytest.mark.spec("CQ-001.4")
def test_no_package_builds_statements_but_as_text() -> None:
    """Of the whole tree: the tables of inbox, outbox and management have statements too."""
    package = Path(conquiet.__file__).parent
    built = {
        str(path.relative_to(package)): builders
        for path in package.rglob("*.py")
        if (builders := builders_in(path.read_text(encoding="utf-8")))
    }

    assert built == {name: {"Table"} for name in DESCRIBES_TABLES}
