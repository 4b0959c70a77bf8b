"""Create and drop a database for one test, on a private server or on one given by URL.

Drivers are imported late: a project may use the pytest plugin without them.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

MYSQL_QUOTE, POSTGRES_QUOTE = "`", '"'
_PLAIN_NAMES = {
    MYSQL_QUOTE: re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
    POSTGRES_QUOTE: re.compile(r"[a-z_][a-z0-9_]{0,62}"),
}
_NO_SUCH_THREAD = 1094
_LOCK_WAIT_S = 20


class HasUrl(Protocol):
    """A server with a URL."""

    @property
    def url(self) -> str:
        """The URL of the server."""
        ...


class MySQLDatabases:
    """The databases of a MySQL or MariaDB."""

    def create_database(self: HasUrl, name: str) -> str:
        """Create a database (utf8mb4) and return its URL."""
        with closing(_connect_mysql(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {quoted(name, MYSQL_QUOTE)} CHARACTER SET utf8mb4")
        return _with_database(self.url, name)

    def drop_database(self: HasUrl, name: str) -> None:
        """Drop a database if it exists, closing the connections that still use it.

        A test that leaks an open transaction would otherwise block the drop for as long as the server waits for a
        metadata lock, which on MariaDB is a day.
        """
        import pymysql

        with closing(_connect_mysql(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (thread,) in cursor.fetchall():
                try:
                    cursor.execute(f"KILL {int(thread)}")
                except pymysql.MySQLError as error:
                    if error.args[0] != _NO_SUCH_THREAD:  # it may have ended meanwhile
                        raise
            cursor.execute(f"DROP DATABASE IF EXISTS {quoted(name, MYSQL_QUOTE)}")


class PostgresDatabases:
    """The databases of a PostgreSQL."""

    def create_database(self: HasUrl, name: str) -> str:
        """Create a database (UTF-8) and return its URL."""
        execute(self.url, f"CREATE DATABASE {quoted(name, POSTGRES_QUOTE)} TEMPLATE template0 ENCODING 'UTF8'")
        return _with_database(self.url, name)

    def drop_database(self: HasUrl, name: str) -> None:
        """Drop a database if it exists, closing the connections that still use it."""
        execute(self.url, f"DROP DATABASE IF EXISTS {quoted(name, POSTGRES_QUOTE)} WITH (FORCE)")


def quoted(name: str, mark: str) -> str:
    """Return ``name`` in quotes. Only plain names: DDL cannot bind parameters."""
    if not _PLAIN_NAMES[mark].fullmatch(name):
        raise ValueError(f"not a plain database name: {name!r}")
    return f"{mark}{name}{mark}"


def execute(server_url: str, statement: str) -> None:
    """Run one statement on a PostgreSQL, outside a transaction."""
    with _connect_postgres(server_url) as connection:
        connection.execute(statement)


def postgres_version(server_url: str) -> str:
    """Return the version of a PostgreSQL, such as ``15.18``."""
    with _connect_postgres(server_url) as connection:
        number = connection.info.server_version
    return f"{number // 10_000}.{number % 10_000}"


def _connect_postgres(server_url: str) -> Any:
    import psycopg

    # Without SQLAlchemy's name of the driver.
    url = urlunsplit(urlsplit(server_url)._replace(scheme="postgresql"))
    return psycopg.connect(url, autocommit=True, connect_timeout=10)


def _connect_mysql(server_url: str) -> Any:
    import pymysql

    parts = urlsplit(server_url)
    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        autocommit=True,
        connect_timeout=10,
    )


def _with_database(server_url: str, name: str) -> str:
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
