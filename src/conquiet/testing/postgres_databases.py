"""Create and drop a database for one test, on a private PostgreSQL or on one given by URL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from conquiet.testing.databases import HasUrl

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresDatabases:
    """The databases of a server."""

    def create_database(self: HasUrl, name: str) -> str:
        """Create a database (UTF-8) and return its URL."""
        execute(self.url, f"CREATE DATABASE {quoted(name)} TEMPLATE template0 ENCODING 'UTF8'")
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def drop_database(self: HasUrl, name: str) -> None:
        """Drop a database if it exists, closing the connections that still use it."""
        execute(self.url, f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")


def quoted(name: str) -> str:
    """Return ``name`` in double quotes. Only plain names: DDL cannot bind parameters."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a plain database name: {name!r}")
    return f'"{name}"'


def server_version(server_url: str) -> str:
    """Return the version, such as ``15.18``."""
    import psycopg

    with psycopg.connect(_for_libpq(server_url), connect_timeout=10) as connection:
        number = connection.info.server_version
    return f"{number // 10_000}.{number % 10_000}"


def execute(server_url: str, statement: str) -> None:
    """Run one statement, outside a transaction."""
    # Imported late: the pytest plugin is loaded in projects that have no driver.
    import psycopg

    plain: Any = statement
    with psycopg.connect(_for_libpq(server_url), autocommit=True, connect_timeout=10) as connection:
        connection.execute(plain)


def _for_libpq(url: str) -> str:
    """Return the URL without SQLAlchemy's name of the driver."""
    return urlunsplit(urlsplit(url)._replace(scheme="postgresql"))
