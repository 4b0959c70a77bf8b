"""Engines on a real PostgreSQL."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

ORDERS = """
CREATE TABLE orders (
    id BIGINT PRIMARY KEY, amount INT NOT NULL DEFAULT 0, email VARCHAR(100) UNIQUE, version INT NOT NULL DEFAULT 1
)
"""

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """``make_engine(url, **options)``: an engine, disposed of afterwards."""
    engines: list[Engine] = []

    def make(url: str, **options: Any) -> Engine:
        engines.append(create_engine(url, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture
def engine(make_engine: MakeEngine, postgres_url: str) -> Engine:
    """An engine on an empty database with a table ``orders``."""
    made = make_engine(postgres_url)
    with made.begin() as connection:
        connection.execute(text(ORDERS))
    return made


@pytest.fixture
def count(engine: Engine) -> Callable[[], int]:
    """Count the rows of ``orders``, on a separate connection."""

    def rows() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT COUNT(*) FROM orders")).scalar_one())

    return rows
