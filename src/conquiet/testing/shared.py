"""The servers of one test run: each started when first asked for, used by all, stopped at the end."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from conquiet.testing.external import (
    DB_URL_VARIABLE,
    RABBIT_URL_VARIABLE,
    REDIS_URL_VARIABLE,
    ExternalMySQL,
    ExternalRabbitMQ,
    ExternalRedis,
)
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.rabbitmq import RabbitMQServer
from conquiet.testing.redis import RedisServer

if TYPE_CHECKING:
    from conquiet.testing.discovery import MySQLFlavour
    from conquiet.testing.process import PrivateServer

S = TypeVar("S", bound="PrivateServer")

SharedRedis = RedisServer | ExternalRedis
SharedMySQL = MySQLServer | ExternalMySQL
SharedRabbitMQ = RabbitMQServer | ExternalRabbitMQ


class SharedServers:
    """Starts lazily, remembers what it used.

    Attributes:
        used: ``"mariadb 10.11.6"`` and the like, in the order of first use: what the run reports at its end.
    """

    def __init__(self) -> None:
        self.used: list[str] = []
        self._stack = ExitStack()
        self._redis: SharedRedis | None = None
        self._mysql: dict[MySQLFlavour | None, SharedMySQL] = {}
        self._rabbitmq: SharedRabbitMQ | None = None

    def redis(self) -> SharedRedis:
        """The run's Redis."""
        if self._redis is None:
            url = os.environ.get(REDIS_URL_VARIABLE)
            self._redis = ExternalRedis(url) if url else self.own(RedisServer())
            self.note(self._redis)
        return self._redis

    def mysql(self, flavour: MySQLFlavour | None) -> SharedMySQL:
        """The run's server of that flavour. Both may be up at once: tests of the two may come in any order."""
        if flavour not in self._mysql:
            url = os.environ.get(DB_URL_VARIABLE)
            server = ExternalMySQL(url) if url else self.own(MySQLServer(flavour=flavour))
            self._mysql[flavour] = server
            self.note(server)
        return self._mysql[flavour]

    def rabbitmq(self) -> SharedRabbitMQ:
        """The run's RabbitMQ."""
        if self._rabbitmq is None:
            url = os.environ.get(RABBIT_URL_VARIABLE)
            self._rabbitmq = ExternalRabbitMQ(url) if url else self.own(RabbitMQServer())
            self.note(self._rabbitmq)
        return self._rabbitmq

    def own(self, server: S) -> S:
        """Start a server that :meth:`stop` will stop."""
        server.start()
        self._stack.callback(server.stop)
        return server

    def note(self, server: SharedRedis | SharedMySQL | SharedRabbitMQ) -> None:
        """Remember that the run used this version."""
        if (label := f"{server.name} {server.version}") not in self.used:
            self.used.append(label)

    def stop(self) -> None:
        """Stop all private servers."""
        self._stack.close()
