"""Create and drop a database for one test, on a private MySQL or MariaDB or on one given by URL."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NO_SUCH_THREAD = 1094
_LOCK_WAIT_S = 20


class HasUrl(Protocol):
    """A server with a URL."""

    @property
    def url(self) -> str:
        """The URL of the server."""
        ...


class MySQLDatabases:
    """The databases of a server."""

    def create_database(self: HasUrl, name: str) -> str:
        """Create a database (utf8mb4) and return its URL."""
        with closing(_connect(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {quoted(name)} CHARACTER SET utf8mb4")
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def drop_database(self: HasUrl, name: str) -> None:
        """Drop a database if it exists, closing the connections that still use it.

        A test that leaks an open transaction would otherwise block the drop for as long as the server waits for a
        metadata lock, which on MariaDB is a day.
        """
        import pymysql

        with closing(_connect(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (thread,) in cursor.fetchall():
                try:
                    cursor.execute(f"KILL {int(thread)}")
                except pymysql.MySQLError as error:
                    if error.args[0] != _NO_SUCH_THREAD:  # it may have ended meanwhile
                        raise
            cursor.execute(f"DROP DATABASE IF EXISTS {quoted(name)}")


def quoted(name: str) -> str:
    """Return ``name`` in backticks. Only plain names: DDL cannot bind parameters."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a plain database name: {name!r}")
    return f"`{name}`"


def _connect(server_url: str) -> Any:
    # Imported late: a project may use the plugin without a MySQL driver.
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
