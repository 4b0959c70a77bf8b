"""Tables of an earlier layout are migrated on every database, by any of the calls."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, text

from conquiet.errors import ConfigurationError
from conquiet.management.doctor.database import examine_schema
from conquiet.management.doctor.findings import Severity
from conquiet.transactional import (
    SCHEMA_VERSION,
    Outbox,
    create_tables,
    metadata,
    migrate_tables,
    table_layouts,
)
from conquiet.transactional.schema import statements

OLD_COLUMNS = {"conquiet_inbox": ["digest"], "conquiet_outbox": ["headers", "event"]}


@pytest.fixture(params=["mysql", "postgresql", "sqlite"])
def new_engine(
    request: pytest.FixtureRequest, db_url: str, postgres_url: str, tmp_path: Path
) -> Iterator[Callable[[], Engine]]:
    urls = {"mysql": db_url, "postgresql": postgres_url, "sqlite": f"sqlite:///{tmp_path / 'shop.db'}"}
    made: list[Engine] = []

    def make() -> Engine:
        made.append(create_engine(urls[request.param]))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


@pytest.fixture
def engine(new_engine: Callable[[], Engine]) -> Engine:
    return new_engine()


@pytest.fixture
def old(engine: Engine) -> Engine:
    """The first layout: without the later columns, one index and the recorded version, with a row in the inbox."""
    create_tables(engine)
    name = engine.dialect.name
    with engine.begin() as connection:
        for table, columns in OLD_COLUMNS.items():
            for column in columns:
                connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))
            if name == "mysql":
                connection.execute(text(f"ALTER TABLE {table} COMMENT = ''"))
            elif name == "postgresql":
                connection.execute(text(f"COMMENT ON TABLE {table} IS NULL"))
        drop = (
            "ALTER TABLE conquiet_outbox DROP INDEX by_key" if name == "mysql" else "DROP INDEX conquiet_outbox_by_key"
        )
        connection.execute(text(drop))
        now = "datetime('now')" if name == "sqlite" else "CURRENT_TIMESTAMP"
        connection.execute(
            text(
                "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
                f"VALUES (:a, :b, :c, {now})"
            ),
            {"a": b"orders", "b": b"billing", "c": b"1-1"},
        )
    return engine


def differences(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), metadata(engine.dialect.name)))


def test_an_old_layout_becomes_the_new_one_and_keeps_its_rows(old: Engine) -> None:
    done = migrate_tables(old)

    assert done
    assert differences(old) == []
    assert migrate_tables(old) == ()
    with old.begin() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM conquiet_inbox")).scalar_one() == 1
    with old.begin() as connection:
        Outbox().add(connection, "ledger", {"n": 1}, event="booked", headers={"a": "b"})


def test_an_empty_database_gets_the_tables(engine: Engine) -> None:
    assert migrate_tables(engine) == tuple(statements(engine.dialect.name))
    assert differences(engine) == []
    assert migrate_tables(engine) == ()


def test_a_dry_run_returns_the_same_statements_and_changes_nothing(old: Engine) -> None:
    planned = migrate_tables(old, dry_run=True)

    assert "headers" not in {one["name"] for one in inspect(old).get_columns("conquiet_outbox")}
    assert migrate_tables(old) == planned


def test_tables_of_todays_create_tables_are_up_to_date(engine: Engine) -> None:
    create_tables(engine)

    assert migrate_tables(engine, dry_run=True) == ()
    recorded = {layout.recorded for layout in table_layouts(engine)}
    assert recorded == ({None} if engine.dialect.name == "sqlite" else {SCHEMA_VERSION})


def test_create_tables_adds_columns_of_an_old_layout(old: Engine) -> None:
    create_tables(old)

    assert [layout.missing_columns for layout in table_layouts(old)] == [(), ()]


def test_hosts_that_migrate_at_once_wait_for_each_other(old: Engine, new_engine: Callable[[], Engine]) -> None:
    engines = [new_engine() for _ in range(4)]
    together, failures, done = threading.Barrier(len(engines)), [], []

    def migrate(engine: Engine) -> None:
        together.wait(60)
        try:
            done.append(migrate_tables(engine))
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    threads = [threading.Thread(target=migrate, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert failures == []
    assert sorted(map(bool, done)) == [False, False, False, True]
    assert differences(old) == []


def test_the_doctor_names_tables_that_are_behind(old: Engine) -> None:
    found = {finding.what.split()[0]: finding for finding in examine_schema(old)}

    assert found["conquiet_outbox"].severity is Severity.ERROR
    assert "headers" in found["conquiet_outbox"].what
    assert found["conquiet_inbox"].severity is Severity.WARNING
    migrate_tables(old)
    assert examine_schema(old) == []


@pytest.mark.parametrize("new_engine", ["mysql", "postgresql"], indirect=True)
def test_tables_of_a_later_version_are_left_alone(engine: Engine) -> None:
    create_tables(engine)
    comment = f"owned by billing: 100 % (conquiet schema {SCHEMA_VERSION + 1})"
    change = "ALTER TABLE conquiet_inbox COMMENT = " if engine.dialect.name == "mysql" else (
        "COMMENT ON TABLE conquiet_inbox IS "
    )  # fmt: skip
    with engine.begin() as connection:
        connection.exec_driver_sql(f"{change}'{comment}'", execution_options={"no_parameters": True})

    with pytest.raises(ConfigurationError, match=f"has schema {SCHEMA_VERSION + 1}"):
        migrate_tables(engine)
    create_tables(engine)
    (finding,) = examine_schema(engine)
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize("new_engine", ["mysql", "postgresql"], indirect=True)
def test_words_of_others_in_a_comment_are_kept(engine: Engine) -> None:
    create_tables(engine)
    words = "it's ours: 100 % \\o/"
    literal = "'it''s ours: 100 % \\\\o/'" if engine.dialect.name == "mysql" else "'it''s ours: 100 % \\o/'"
    change = "ALTER TABLE conquiet_inbox COMMENT = " if engine.dialect.name == "mysql" else (
        "COMMENT ON TABLE conquiet_inbox IS "
    )  # fmt: skip
    with engine.begin() as connection:
        connection.exec_driver_sql(f"{change}{literal}", execution_options={"no_parameters": True})

    migrate_tables(engine)

    comment = inspect(engine).get_table_comment("conquiet_inbox")["text"]
    assert comment == f"{words} (conquiet schema {SCHEMA_VERSION})"
    assert migrate_tables(engine) == ()
