"""The tables of the schema files and of ``metadata()`` are the same on every database, and Alembic agrees."""

from collections.abc import Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, create_engine, inspect, text
from sqlalchemy.dialects import mysql
from sqlalchemy.pool import StaticPool

from conquiet.errors import ConfigurationError
from conquiet.transactional import create_tables, metadata

TABLES = ("conquiet_inbox", "conquiet_outbox")


@pytest.fixture(params=["mysql", "postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, db_url: str, postgres_url: str) -> Iterator[Engine]:
    urls = {"mysql": db_url, "postgresql": postgres_url, "sqlite": "sqlite://"}
    options: dict[str, Any] = {"poolclass": StaticPool} if request.param == "sqlite" else {}
    made = create_engine(urls[request.param], **options)
    yield made
    made.dispose()


def differences(engine: Engine, target: MetaData) -> list[Any]:
    """The operations that autogenerate would write into a migration."""
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), target))


def description(engine: Engine) -> dict[str, Any]:
    """The tables as the database describes them."""
    found: Any = inspect(engine)
    return {
        table: {
            "columns": [
                (one["name"], one["type"].compile(engine.dialect), one["nullable"], one.get("default"))
                for one in found.get_columns(table)
            ],
            "key": found.get_pk_constraint(table)["constrained_columns"],
            "indexes": sorted((one["name"], tuple(one["column_names"])) for one in found.get_indexes(table)),
            "identity": [(one.get("identity") or {}).get("always") for one in found.get_columns(table)],
            "engine": found.get_table_options(table).get("mysql_engine"),
        }
        for table in TABLES
    }


def test_alembic_finds_no_difference_to_the_schema_file(engine: Engine) -> None:
    create_tables(engine)

    assert differences(engine, metadata(engine.dialect.name)) == []


def test_create_all_makes_the_same_tables_as_the_schema_file(engine: Engine) -> None:
    create_tables(engine)
    by_file = description(engine)
    with engine.begin() as connection:
        for table in TABLES:
            connection.execute(text(f"DROP TABLE {table}"))

    metadata(engine.dialect.name).create_all(engine)

    assert description(engine) == by_file
    create_tables(engine)  # finds nothing to do


def test_alembic_creates_what_is_missing_and_drops_nothing(engine: Engine) -> None:
    changes = differences(engine, metadata(engine.dialect.name))

    assert [change[1].name for change in changes if change[0] == "add_table"] == list(TABLES)
    assert {change[0] for change in changes} == {"add_table", "add_index"}


def test_alembic_would_drop_the_tables_without_the_metadata(engine: Engine) -> None:
    """A deployment that runs 'conquiet db init' and does not use ``metadata``."""
    create_tables(engine)

    assert {change[0] for change in differences(engine, MetaData())} >= {"remove_table"}


def test_other_names_and_schemas_are_kept(engine: Engine) -> None:
    create_tables(engine, inbox="seen", outbox="outgoing")
    wanted = metadata(engine.dialect.name, inbox="seen", outbox="outgoing")

    assert set(wanted.tables) == {"seen", "outgoing"}
    assert differences(engine, wanted) == []
    assert set(metadata("postgresql", inbox="app.seen", outbox="app.out").tables) == {"app.seen", "app.out"}


def test_an_unknown_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one of mariadb, mysql, postgresql, sqlite"):
        metadata("oracle")


def test_unsigned_numbers_and_microseconds_are_kept_on_mysql() -> None:
    outbox = metadata("mysql").tables["conquiet_outbox"]

    assert outbox.c.seq.type.compile(mysql.dialect()) == "BIGINT UNSIGNED"
    assert outbox.c.due_at.type.compile(mysql.dialect()) == "DATETIME(6)"
