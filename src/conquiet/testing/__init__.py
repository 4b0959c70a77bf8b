"""Real servers for tests, private to a test run, and a proxy that breaks connections on demand.

>>> from conquiet.testing import RedisServer
>>> with RedisServer(aof=True) as server:  # doctest: +SKIP
...     server.kill()
...     server.restart()

Names are imported when first used: the pytest plugin lives in this package and is loaded by every pytest run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conquiet.testing.discovery import MySQLFlavour
    from conquiet.testing.errors import (
        ServerNotOwnedError,
        ServerStartError,
        ServerStateError,
        ServerUnavailableError,
    )
    from conquiet.testing.external import ExternalMySQL, ExternalRabbitMQ, ExternalRedis, ExternalServer
    from conquiet.testing.mysql import MySQLServer
    from conquiet.testing.ports import free_port
    from conquiet.testing.process import PrivateServer, ServerStatus
    from conquiet.testing.proxy import Cut, Direction, FaultProxy, ProxyCounters
    from conquiet.testing.rabbitmq import RabbitMQServer
    from conquiet.testing.redis import RedisServer
    from conquiet.testing.waiting import wait_until, wait_until_async

_HOMES = {
    "Cut": "proxy",
    "Direction": "proxy",
    "ExternalMySQL": "external",
    "ExternalRabbitMQ": "external",
    "ExternalRedis": "external",
    "ExternalServer": "external",
    "FaultProxy": "proxy",
    "MySQLFlavour": "discovery",
    "MySQLServer": "mysql",
    "PrivateServer": "process",
    "ProxyCounters": "proxy",
    "RabbitMQServer": "rabbitmq",
    "RedisServer": "redis",
    "ServerNotOwnedError": "errors",
    "ServerStartError": "errors",
    "ServerStateError": "errors",
    "ServerStatus": "process",
    "ServerUnavailableError": "errors",
    "free_port": "ports",
    "wait_until": "waiting",
    "wait_until_async": "waiting",
}

__all__ = [
    "Cut",
    "Direction",
    "ExternalMySQL",
    "ExternalRabbitMQ",
    "ExternalRedis",
    "ExternalServer",
    "FaultProxy",
    "MySQLFlavour",
    "MySQLServer",
    "PrivateServer",
    "ProxyCounters",
    "RabbitMQServer",
    "RedisServer",
    "ServerNotOwnedError",
    "ServerStartError",
    "ServerStateError",
    "ServerStatus",
    "ServerUnavailableError",
    "free_port",
    "wait_until",
    "wait_until_async",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
