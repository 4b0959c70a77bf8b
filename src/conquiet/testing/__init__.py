"""Real servers for tests, private to a test run, and a proxy that breaks connections on demand.

>>> from conquiet.testing import RedisServer
>>> with RedisServer(aof=True) as server:  # doctest: +SKIP
...     server.kill()
...     server.restart()

``conquiet.testing.pytest_plugin`` has the fixtures; a project turns it on with one line, see docs/testing.md. Names
are imported when first used, so that loading the plugin loads no client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conquiet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from conquiet.app.testing import TestApp
    from conquiet.testing.discovery import MySQLFlavour
    from conquiet.testing.errors import (
        ServerNotOwnedError,
        ServerStartError,
        ServerStateError,
        ServerUnavailableError,
    )
    from conquiet.testing.external import (
        ExternalMySQL,
        ExternalPostgres,
        ExternalRabbitMQ,
        ExternalRedis,
        ExternalServer,
    )
    from conquiet.testing.mysql import MySQLServer
    from conquiet.testing.polling import wait_until, wait_until_async
    from conquiet.testing.ports import free_port
    from conquiet.testing.postgres import PostgresServer
    from conquiet.testing.process import PrivateServer, ServerStatus
    from conquiet.testing.proxy import CloseMode, Direction, FaultProxy, ProxyCounters
    from conquiet.testing.rabbitmq import RabbitMQServer
    from conquiet.testing.rabbitmq_cluster import RabbitMQClusterServer, RabbitMQNode
    from conquiet.testing.redis import RedisServer
    from conquiet.testing.redis_cluster import ClusterNode, RedisClusterServer

_HOMES = {
    "conquiet.app.testing": ("TestApp",),
    ".discovery": ("MySQLFlavour",),
    ".errors": ("ServerNotOwnedError", "ServerStartError", "ServerStateError", "ServerUnavailableError"),
    ".external": ("ExternalMySQL", "ExternalPostgres", "ExternalRabbitMQ", "ExternalRedis", "ExternalServer"),
    ".mysql": ("MySQLServer",),
    ".polling": ("wait_until", "wait_until_async"),
    ".ports": ("free_port",),
    ".postgres": ("PostgresServer",),
    ".process": ("PrivateServer", "ServerStatus"),
    ".proxy": ("CloseMode", "Direction", "FaultProxy", "ProxyCounters"),
    ".rabbitmq": ("RabbitMQServer",),
    ".rabbitmq_cluster": ("RabbitMQClusterServer", "RabbitMQNode"),
    ".redis": ("RedisServer",),
    ".redis_cluster": ("ClusterNode", "RedisClusterServer"),
}

__all__ = [
    "CloseMode",
    "ClusterNode",
    "Direction",
    "ExternalMySQL",
    "ExternalPostgres",
    "ExternalRabbitMQ",
    "ExternalRedis",
    "ExternalServer",
    "FaultProxy",
    "MySQLFlavour",
    "MySQLServer",
    "PostgresServer",
    "PrivateServer",
    "ProxyCounters",
    "RabbitMQClusterServer",
    "RabbitMQNode",
    "RabbitMQServer",
    "RedisClusterServer",
    "RedisServer",
    "ServerNotOwnedError",
    "ServerStartError",
    "ServerStateError",
    "ServerStatus",
    "ServerUnavailableError",
    "TestApp",
    "free_port",
    "wait_until",
    "wait_until_async",
]


__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
