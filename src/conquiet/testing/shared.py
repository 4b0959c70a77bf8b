"""The servers of one test run: each started on first use, shared by all tests, stopped at the end."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from conquiet.core.redaction import redact_url
from conquiet.testing.errors import ServerUnavailableError
from conquiet.testing.external import (
    DB_URL_VARIABLE,
    POSTGRES_URL_VARIABLE,
    RABBIT_URL_VARIABLE,
    REDIS_URL_VARIABLE,
    ExternalMySQL,
    ExternalPostgres,
    ExternalRabbitMQ,
    ExternalRedis,
    ExternalServer,
)
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.postgres import PostgresServer
from conquiet.testing.rabbitmq import RabbitMQServer
from conquiet.testing.redis import RedisServer
from conquiet.testing.redis_cluster import RedisClusterServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from conquiet.testing.discovery import MySQLFlavour

P = TypeVar("P", RedisServer, RedisClusterServer, MySQLServer, PostgresServer, RabbitMQServer)
E = TypeVar("E", bound=ExternalServer)

SharedRedis = RedisServer | ExternalRedis
SharedMySQL = MySQLServer | ExternalMySQL
SharedPostgres = PostgresServer | ExternalPostgres
SharedRabbitMQ = RabbitMQServer | ExternalRabbitMQ


class SharedServers:
    """Start servers on first use and stop them at the end of the run.

    Attributes:
        used: Names and versions such as ``"mariadb 10.11.6"``, in the order of first use, for the report at the end of
            the run.
    """

    def __init__(self) -> None:
        self.used: list[str] = []
        self._stack = ExitStack()
        self._started: dict[object, Any] = {}

    def redis(self) -> SharedRedis:
        """Return the Redis server of the run."""
        return self._shared(RedisServer, ExternalRedis, REDIS_URL_VARIABLE)

    def redis_cluster(self) -> RedisClusterServer:
        """Return the Redis Cluster of the run."""
        return self._shared(RedisClusterServer)

    def mysql(self, flavour: MySQLFlavour | None) -> SharedMySQL:
        """Return the server of that flavour. Both may run concurrently: tests run in any order."""
        return self._shared(MySQLServer, ExternalMySQL, DB_URL_VARIABLE, flavour=flavour)

    def postgres(self) -> SharedPostgres:
        """Return the PostgreSQL server of the run."""
        return self._shared(PostgresServer, ExternalPostgres, POSTGRES_URL_VARIABLE)

    def rabbitmq(self) -> SharedRabbitMQ:
        """Return the RabbitMQ server of the run."""
        return self._shared(RabbitMQServer, ExternalRabbitMQ, RABBIT_URL_VARIABLE)

    def _shared(
        self, private: Callable[..., P], external: Callable[[str], E] | None = None, variable: str = "", **options: Any
    ) -> P | E:
        """Return a server of the run: given by the URL in the variable, or private and ended by :meth:`stop`."""
        key = (private, *options.values())
        if key not in self._started:
            url = os.environ.get(variable)
            started: Any = (
                _connect(external, url, variable) if url and external else self._stack.enter_context(private(**options))
            )
            self.record(started)
            self._started[key] = started
        server: P | E = self._started[key]
        return server

    def record(self, server: SharedRedis | RedisClusterServer | SharedMySQL | SharedPostgres | SharedRabbitMQ) -> None:
        """Record that the run used this version."""
        if (label := f"{server.name} {server.version}") not in self.used:
            self.used.append(label)

    def stop(self) -> None:
        """Stop all private servers."""
        self._stack.close()


def _connect(external: Callable[[str], E], url: str, variable: str) -> E:
    try:
        return external(url)
    except Exception as error:  # noqa: BLE001 - the text of the driver is not shown: it may quote the password
        raise ServerUnavailableError(
            f"the server at {redact_url(url)}, given in {variable}, cannot be used ({type(error).__name__})"
        ) from None
