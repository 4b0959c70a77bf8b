from collections.abc import Callable
from uuid import uuid4

import pytest
import sqlalchemy as sa

from conquiet.testing import MySQLServer, wait_until
from conquiet.testing.databases import MYSQL_QUOTE, quoted
from conquiet.testing.shared import SharedMySQL

StartMySQL = Callable[..., MySQLServer]


def run(url: str, *statements: str) -> list[object]:
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"read_timeout": 60})
    with engine.begin() as connection:
        rows: list[object] = []
        for statement in statements:
            result = connection.execute(sa.text(statement))
            rows = list(result.scalars()) if result.returns_rows else []
        return rows


def test_committed_rows_survive_a_kill_and_a_polite_restart_and_a_pause(private_mysql: StartMySQL) -> None:
    """One test, because each start of a database costs a second."""
    server = private_mysql()
    url = server.url
    run(url, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")

    server.kill()
    assert not server.is_running
    server.restart()
    assert server.url == url
    assert run(url, "SELECT id FROM t") == [1]

    run(url, "INSERT INTO t VALUES (2)")
    server.restart()
    assert run(url, "SELECT id FROM t ORDER BY id") == [1, 2]

    server.pause()
    assert not server.is_running
    server.resume()
    assert run(url, "SELECT COUNT(*) FROM t") == [2]


def test_the_version_is_the_one_the_server_reports(mysql_server: SharedMySQL, db_url: str) -> None:
    [reported] = run(db_url, "SELECT VERSION()")

    assert mysql_server.version == reported
    assert ("mariadb" in str(reported).lower()) == (mysql_server.name == "mariadb")


def test_more_connections_than_usual_are_allowed(db_url: str) -> None:
    """Tests of contention open hundreds."""
    [limit] = run(db_url, "SELECT @@max_connections")

    assert isinstance(limit, int)
    assert limit >= 300


def test_each_test_gets_an_empty_database_of_its_own_in_utf8mb4(db_url: str) -> None:
    assert run(db_url, "SHOW TABLES") == []
    assert run(db_url, "SELECT @@character_set_database") == ["utf8mb4"]


def test_a_database_is_dropped_even_while_a_transaction_is_open_in_it(mysql_server: SharedMySQL) -> None:
    """A leaked transaction would otherwise hold the drop for a day on MariaDB."""
    name = f"conquiet_test_{uuid4().hex[:12]}"
    url = mysql_server.create_database(name)
    run(url, "CREATE TABLE t (id INT PRIMARY KEY)")
    engine = sa.create_engine(url)
    leaked = engine.connect()
    leaked.execute(sa.text("INSERT INTO t VALUES (1)"))

    mysql_server.drop_database(name)

    wait_until(lambda: name not in run(mysql_server.url, "SHOW DATABASES"), message="dropped")
    leaked.invalidate()
    leaked.close()
    engine.dispose()


def test_a_database_name_that_is_not_plain_is_refused() -> None:
    with pytest.raises(ValueError, match="not a plain database name"):
        quoted("x`; DROP DATABASE y", MYSQL_QUOTE)
