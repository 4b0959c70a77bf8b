"""A SQLite database per test: everything but MySQL's locks works on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from conquiet.config import DbConfig
from conquiet.db import DbWriter


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    with engine.begin() as conn:
        conn.execute(
            text(
                "CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER, status TEXT NOT NULL DEFAULT 'new', "
                "email TEXT UNIQUE, id_value INTEGER, version INTEGER NOT NULL DEFAULT 1)"
            )
        )
    yield engine
    engine.dispose()


@pytest.fixture
def writer(sqlite: Engine) -> DbWriter:
    return DbWriter(sqlite, DbConfig("orders"))
