"""Databases of every kind, with the tables of inbox and outbox, and a table in which an effect can be counted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from conquiet.transactional import create_tables

EFFECTS = "CREATE TABLE effects (message_id VARCHAR(64) NOT NULL, cents INT NOT NULL)"


@dataclass(frozen=True)
class Database:
    """A database for one test.

    Attributes:
        kind: ``mysql``, ``postgresql`` or ``sqlite``.
        url: Its URL, with the synchronous driver.
        engine: A synchronous engine for it.
    """

    kind: str
    url: str
    engine: Engine

    def count(self, table: str) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar_one())

    def effects(self) -> list[str]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT message_id FROM effects")).scalars())


MakeDatabase = Callable[[str], Database]


@pytest.fixture
def make_database(db_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabase]:
    made: list[Engine] = []

    def make(kind: str) -> Database:
        arguments: dict[str, object] = {}
        if kind == "sqlite":
            url, arguments = f"sqlite:///{tmp_path / 'db.sqlite'}", {"timeout": 20.0}
        elif kind == "postgresql":
            url = request.getfixturevalue("postgres_url")
        else:
            url = db_url
            arguments = {"init_command": "SET SESSION innodb_lock_wait_timeout=2"}
        engine = create_engine(url, connect_args=arguments)
        made.append(engine)
        create_tables(engine)
        with engine.begin() as connection:
            connection.execute(text(EFFECTS))
        return Database(kind, url, engine)

    yield make
    for engine in made:
        engine.dispose()


@pytest.fixture(params=["mysql", "postgresql", "sqlite"])
def database(request: pytest.FixtureRequest, make_database: MakeDatabase) -> Database:
    return make_database(request.param)


@pytest.fixture
def mysql(make_database: MakeDatabase) -> Database:
    return make_database("mysql")
