"""Engines on real servers, once per server flavour and driver.

PyMySQL is always installed. mysqlclient is tested if it is installed, or if
``CONQUIET_TEST_DB_DRIVERS=pymysql,mysqldb`` requires it; the summary names the drivers.
"""

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.engine import Connection

DRIVERS = [
    name.strip()
    for name in os.environ.get(
        "CONQUIET_TEST_DB_DRIVERS", "pymysql,mysqldb" if find_spec("MySQLdb") is not None else "pymysql"
    ).split(",")
]

ORDERS = """
CREATE TABLE orders (
    id BIGINT PRIMARY KEY, amount INT NOT NULL DEFAULT 0, status VARCHAR(20) NOT NULL DEFAULT 'new',
    email VARCHAR(100) UNIQUE, id_value INT, version INT NOT NULL DEFAULT 1
) ENGINE=InnoDB
"""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line("database drivers used: " + ", ".join(DRIVERS))


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_engine(driver: str) -> Iterator[Callable[..., Engine]]:
    """``make_engine(url, **options)``: an engine with the driver under test, disposed of afterwards."""
    engines: list[Engine] = []

    def make(url: str, **options: Any) -> Engine:
        engines.append(create_engine(make_url(url).set(drivername=f"mysql+{driver}"), **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture
def engine(make_engine: Callable[..., Engine], db_url: str) -> Engine:
    """An engine on an empty database with a table ``orders``."""
    made = make_engine(db_url)
    with made.begin() as conn:
        conn.execute(text(ORDERS))
    return made


@pytest.fixture
def admin(db_url: str) -> Iterator[Connection]:
    """A second connection that sees what the server sees; each statement is its own transaction."""
    made = create_engine(db_url, isolation_level="AUTOCOMMIT")
    with made.connect() as conn:
        yield conn
    made.dispose()


@pytest.fixture
def statements(engine: Engine, admin: Connection) -> Iterator[Callable[[], list[str]]]:
    """``statements()``: the statements that reached this test's database since the last call, in order.

    Taken from the server's general log, so it holds what the server received.
    """
    own = admin.execute(text("SELECT CONNECTION_ID()")).scalar()
    admin.execute(text("SET GLOBAL log_output = 'TABLE'"))
    admin.execute(text("SET GLOBAL general_log = 1"))

    def sent() -> list[str]:
        logged = admin.execute(
            text(
                "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log "
                "WHERE command_type = 'Query' AND thread_id <> :own ORDER BY event_time"
            ),
            {"own": own},
        )
        found = [" ".join(str(row[0]).split()) for row in logged]
        admin.execute(text("TRUNCATE TABLE mysql.general_log"))
        return found

    sent()
    yield sent
    admin.execute(text("SET GLOBAL general_log = 0"))
    admin.execute(text("TRUNCATE TABLE mysql.general_log"))
