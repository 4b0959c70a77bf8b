"""Servers that already run and are given by URL: never killed, never paused, never flushed.

They have the same ``url``, ``name`` and ``version`` as private servers, and the same methods to create a database or
a vhost for one test. ``kill``, ``restart``, ``pause`` and ``resume`` raise ``ServerNotOwnedError``.
"""

from __future__ import annotations

import os
import ssl
from typing import NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

from conquiet.rabbitmq_api import RabbitApi, with_vhost
from conquiet.testing import handshakes
from conquiet.testing.databases import MySQLDatabases, PostgresDatabases, postgres_version
from conquiet.testing.errors import ServerNotOwnedError

REDIS_URL_VARIABLE = "CONQUIET_TEST_REDIS_URL"
DB_URL_VARIABLE = "CONQUIET_TEST_DB_URL"
POSTGRES_URL_VARIABLE = "CONQUIET_TEST_POSTGRES_URL"
RABBIT_URL_VARIABLE = "CONQUIET_TEST_RABBIT_URL"
RABBIT_MANAGEMENT_VARIABLE = "CONQUIET_TEST_RABBIT_MANAGEMENT_URL"


class ExternalServer:
    """A running server that this test run did not start.

    Args:
        url: URL of the server.
        variable: Environment variable that held the URL, for error texts.
    """

    default_port = 0

    def __init__(self, url: str, variable: str) -> None:
        self.url = url
        self.name = "external"
        self.version = ""
        self._variable = variable
        parts = urlsplit(url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or self.default_port

    is_running = True

    def ensure_running(self) -> None:
        """Do nothing: this test run did not start the server."""

    def stop(self) -> None:
        """Do nothing: the server continues after this test run."""

    def kill(self) -> NoReturn:
        """Raise ``ServerNotOwnedError``."""
        self._refuse("kill")

    def restart(self) -> NoReturn:
        """Raise ``ServerNotOwnedError``."""
        self._refuse("restart")

    def pause(self) -> NoReturn:
        """Raise ``ServerNotOwnedError``."""
        self._refuse("pause")

    def resume(self) -> NoReturn:
        """Raise ``ServerNotOwnedError``."""
        self._refuse("resume")

    def _refuse(self, verb: str) -> NoReturn:
        raise ServerNotOwnedError(
            f"cannot {verb} the server given in {self._variable}: others may be using it. A test that needs this takes "
            f"the private_redis, private_mysql, private_postgres or private_rabbitmq fixture."
        )


class ExternalRedis(ExternalServer):
    """A Redis given by URL. Others may use it, so a test uses only keys under its own prefix.

    Args:
        url: ``redis://`` or ``rediss://`` URL.
    """

    default_port = 6379

    def __init__(self, url: str) -> None:
        super().__init__(url, REDIS_URL_VARIABLE)
        with self._connect() as connection:
            self.name, self.version = handshakes.redis_identity(connection)

    def delete_prefix(self, prefix: str) -> None:
        """Delete the keys that start with ``prefix``, a few at a time."""
        pattern = "".join(f"\\{char}" if char in "*?[]^\\" else char for char in prefix) + "*"
        with self._connect() as connection:
            cursor = b"0"
            while True:
                cursor, keys = connection.call("SCAN", cursor, "MATCH", pattern, "COUNT", "500")
                if keys:
                    connection.call("UNLINK", *keys)
                if cursor == b"0":
                    return

    def _connect(self) -> handshakes.Resp:
        parts = urlsplit(self.url)
        channel = handshakes.connect_tcp(self.host, self.port)
        if parts.scheme == "rediss":
            authority = parse_qs(parts.query).get("ssl_ca_certs", [None])[0]
            channel = ssl.create_default_context(cafile=authority).wrap_socket(channel, server_hostname=self.host)
        login: list[list[str]] = []
        if parts.password:
            login.append(["AUTH", *([unquote(parts.username)] if parts.username else []), unquote(parts.password)])
        if database := parts.path.strip("/"):
            login.append(["SELECT", database])
        return handshakes.Resp(channel, *login)


class ExternalMySQL(MySQLDatabases, ExternalServer):
    """A MySQL or MariaDB given by URL. Its user must be allowed to create databases.

    Args:
        url: SQLAlchemy URL.
    """

    default_port = 3306

    def __init__(self, url: str) -> None:
        super().__init__(url, DB_URL_VARIABLE)
        self.version = handshakes.mysql_version(handshakes.connect_tcp(self.host, self.port))
        self.name = "mariadb" if "mariadb" in self.version.lower() else "mysql"


class ExternalPostgres(PostgresDatabases, ExternalServer):
    """A PostgreSQL given by URL. Its user must be allowed to create databases.

    Args:
        url: SQLAlchemy URL.
    """

    default_port = 5432

    def __init__(self, url: str) -> None:
        super().__init__(url, POSTGRES_URL_VARIABLE)
        self.name = "postgresql"
        self.version = postgres_version(url)


class ExternalRabbitMQ(ExternalServer):
    """A RabbitMQ given by URL.

    With its management address in ``CONQUIET_TEST_RABBIT_MANAGEMENT_URL`` each test gets its own vhost, without
    it all share the vhost of the URL.

    Args:
        url: ``amqp://`` URL.
    """

    default_port = 5672

    def __init__(self, url: str) -> None:
        super().__init__(url, RABBIT_URL_VARIABLE)
        self.version = handshakes.amqp_version(handshakes.connect_tcp(self.host, self.port))
        self.name = "rabbitmq"
        address = os.environ.get(RABBIT_MANAGEMENT_VARIABLE)
        self._api = RabbitApi(address) if address else None

    def create_vhost(self, name: str) -> str:
        """Return the URL of a new vhost if the management address is known, else the given URL."""
        if self._api is None:
            return self.url
        self._api.create_vhost(name)
        return with_vhost(self.url, name)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost that a test created."""
        if self._api is not None:
            self._api.delete_vhost(name)
