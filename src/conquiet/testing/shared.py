"""The servers of one test run: each started on first use, shared by all tests, stopped at the end."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from conquiet.testing.external import (
    DB_URL_VARIABLE,
    POSTGRES_URL_VARIABLE,
    RABBIT_URL_VARIABLE,
    REDIS_URL_VARIABLE,
    ExternalMySQL,
    ExternalPostgres,
    ExternalRabbitMQ,
    ExternalRedis,
)
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.postgres import PostgresServer
from conquiet.testing.rabbitmq import RabbitMQServer
from conquiet.testing.redis import RedisServer
from conquiet.testing.redis_cluster import RedisClusterServer

if TYPE_CHECKING:
    from conquiet.testing.discovery import MySQLFlavour
    from conquiet.testing.process import PrivateServer

S = TypeVar("S", bound="PrivateServer")

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
        self._redis: SharedRedis | None = None
        self._redis_cluster: RedisClusterServer | None = None
        self._mysql: dict[MySQLFlavour | None, SharedMySQL] = {}
        self._postgres: SharedPostgres | None = None
        self._rabbitmq: SharedRabbitMQ | None = None

    def redis(self) -> SharedRedis:
        """Return the Redis server of the run."""
        if self._redis is None:
            url = os.environ.get(REDIS_URL_VARIABLE)
            self._redis = ExternalRedis(url) if url else self.own(RedisServer())
            self.record(self._redis)
        return self._redis

    def redis_cluster(self) -> RedisClusterServer:
        """Return the Redis Cluster of the run."""
        if self._redis_cluster is None:
            self._redis_cluster = RedisClusterServer().start()
            self._stack.callback(self._redis_cluster.stop)
            self.record(self._redis_cluster)
        return self._redis_cluster

    def mysql(self, flavour: MySQLFlavour | None) -> SharedMySQL:
        """Return the server of that flavour. Both may run concurrently: tests run in any order."""
        if flavour not in self._mysql:
            url = os.environ.get(DB_URL_VARIABLE)
            server = ExternalMySQL(url) if url else self.own(MySQLServer(flavour=flavour))
            self._mysql[flavour] = server
            self.record(server)
        return self._mysql[flavour]

    def postgres(self) -> SharedPostgres:
        """Return the PostgreSQL server of the run."""
        if self._postgres is None:
            url = os.environ.get(POSTGRES_URL_VARIABLE)
            self._postgres = ExternalPostgres(url) if url else self.own(PostgresServer())
            self.record(self._postgres)
        return self._postgres

    def rabbitmq(self) -> SharedRabbitMQ:
        """Return the RabbitMQ server of the run."""
        if self._rabbitmq is None:
            url = os.environ.get(RABBIT_URL_VARIABLE)
            self._rabbitmq = ExternalRabbitMQ(url) if url else self.own(RabbitMQServer())
            self.record(self._rabbitmq)
        return self._rabbitmq

    def own(self, server: S) -> S:
        """Start a server that :meth:`stop` will stop."""
        server.start()
        self._stack.callback(server.stop)
        return server

    def record(self, server: SharedRedis | RedisClusterServer | SharedMySQL | SharedPostgres | SharedRabbitMQ) -> None:
        """Record that the run used this version."""
        if (label := f"{server.name} {server.version}") not in self.used:
            self.used.append(label)

    def stop(self) -> None:
        """Stop all private servers."""
        self._stack.close()
