"""Create and drop a database for one test, on a private MySQL or MariaDB or on one given by URL."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NO_SUCH_THREAD = 1094
_LOCK_WAIT_S = 20


def create_database(server_url: str, name: str) -> str:
    """Create ``name`` (utf8mb4) and return ``server_url`` with it as the database."""
    execute(server_url, [f"CREATE DATABASE {quoted(name)} CHARACTER SET utf8mb4"])
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))


def drop_database(server_url: str, name: str) -> None:
    """Drop ``name`` if it exists, closing the connections that still use it.

    A test that leaks an open transaction would otherwise block the drop for as long as the server waits for a
    metadata lock, which on MariaDB is a day.
    """
    import pymysql

    with closing(_connect(server_url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
        for (thread,) in cursor.fetchall():
            try:
                cursor.execute(f"KILL {int(thread)}")
            except pymysql.MySQLError as error:
                if error.args[0] != _NO_SUCH_THREAD:  # it may have ended meanwhile
                    raise
        cursor.execute(f"DROP DATABASE IF EXISTS {quoted(name)}")


def execute(server_url: str, statements: Sequence[str]) -> None:
    """Run statements in order on a new connection, without a database selected."""
    with closing(_connect(server_url)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


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
