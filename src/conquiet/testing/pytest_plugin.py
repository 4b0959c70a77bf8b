"""Fixtures with real servers, for conquiet's own tests and for those of its users.

Loaded by every pytest run of an environment that has conquiet, so importing it imports next to nothing, and nothing
is started before a test asks. A missing server fails the test that needs it: a skip would look like a pass.

    redis_server mysql_server rabbitmq_server      shared by the run; do not kill them
    redis_url    db_url       amqp_url             an empty place on them for one test
    private_redis private_mysql private_rabbitmq   factories for servers to kill, pause, restart
    key_prefix                                     a prefix nobody else uses
    fault_proxy                                    factory: fault_proxy(url) -> FaultProxy

Addresses in ``CONQUIET_TEST_REDIS_URL``, ``CONQUIET_TEST_DB_URL`` and ``CONQUIET_TEST_RABBIT_URL`` take the place of
the shared servers. ``CONQUIET_TEST_DB_FLAVOURS=mariadb,mysql`` says which database servers there have to be; without
it the tests run on those that are found.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conquiet.testing.discovery import MySQLFlavour
    from conquiet.testing.mysql import MySQLServer
    from conquiet.testing.proxy import FaultProxy
    from conquiet.testing.rabbitmq import RabbitMQServer
    from conquiet.testing.redis import RedisServer
    from conquiet.testing.shared import SharedMySQL, SharedRabbitMQ, SharedRedis, SharedServers

_FLAVOUR_FIXTURE = "conquiet_mysql_flavour"
_FLAVOURS_VARIABLE = "CONQUIET_TEST_DB_FLAVOURS"
_SERVERS_KEY: pytest.StashKey[Any] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what uses a MySQL server once per flavour."""
    # Parametrised here and not on the fixture, because looking for programs takes time that a run without MySQL
    # should not pay. The name is long so that a project with a mysql_server of its own is left alone.
    if _FLAVOUR_FIXTURE in metafunc.fixturenames:
        flavours = _flavours()
        ids = ["default" if flavour is None else flavour.value for flavour in flavours]
        metafunc.parametrize(_FLAVOUR_FIXTURE, flavours, ids=ids, indirect=True, scope="session")


def _flavours() -> list[MySQLFlavour | None]:
    from conquiet.testing.discovery import MySQLFlavour, available_mysql_flavours
    from conquiet.testing.external import DB_URL_VARIABLE

    if os.environ.get(DB_URL_VARIABLE):
        return [None]
    if wanted := os.environ.get(_FLAVOURS_VARIABLE):
        try:
            return [MySQLFlavour(name.strip()) for name in wanted.split(",")]
        except ValueError as error:
            raise pytest.UsageError(f"{_FLAVOURS_VARIABLE}: {error}; known are mariadb and mysql") from error
    # With none found there is still one test, which then fails with the advice on what to install.
    return [*available_mysql_flavours()] or [None]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which server versions the run has met."""
    servers = config.stash.get(_SERVERS_KEY, None)
    if servers is not None and servers.used:
        terminalreporter.write_line("servers used: " + ", ".join(servers.used))


@pytest.fixture(scope="session")
def conquiet_servers(pytestconfig: pytest.Config) -> Iterator[SharedServers]:
    """The run's servers, started when first asked for."""
    from conquiet.testing.shared import SharedServers

    servers = pytestconfig.stash[_SERVERS_KEY] = SharedServers()
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def conquiet_mysql_flavour(request: pytest.FixtureRequest) -> MySQLFlavour | None:
    """The flavour the current test runs on; None when a server was given by URL."""
    flavour: MySQLFlavour | None = request.param
    return flavour


@pytest.fixture(scope="session")
def redis_server(conquiet_servers: SharedServers) -> SharedRedis:
    """A Redis shared by the whole run."""
    return conquiet_servers.redis()


@pytest.fixture(scope="session")
def mysql_server(conquiet_servers: SharedServers, conquiet_mysql_flavour: MySQLFlavour | None) -> SharedMySQL:
    """A MySQL or MariaDB shared by the whole run; a test that uses it runs once per flavour."""
    return conquiet_servers.mysql(conquiet_mysql_flavour)


@pytest.fixture(scope="session")
def rabbitmq_server(conquiet_servers: SharedServers) -> SharedRabbitMQ:
    """A RabbitMQ shared by the whole run: it takes seconds to start."""
    return conquiet_servers.rabbitmq()


@pytest.fixture
def key_prefix() -> str:
    """A prefix for keys, groups and queues that no other test uses. On a Redis given by URL use it for every key."""
    return f"test-{uuid4().hex[:12]}:"


@pytest.fixture
def redis_url(redis_server: SharedRedis, key_prefix: str) -> Iterator[str]:
    """Address of an empty Redis. On one given by URL nothing is flushed: only keys under ``key_prefix`` are removed."""
    from conquiet.testing.redis import RedisServer

    redis_server.ensure_running()
    if isinstance(redis_server, RedisServer):
        # Before and not after: what a failed test leaves can then still be looked at by its teardown.
        redis_server.flush()
        yield redis_server.url
    else:
        yield redis_server.url
        redis_server.delete_prefix(key_prefix)


@pytest.fixture
def db_url(mysql_server: SharedMySQL) -> Iterator[str]:
    """SQLAlchemy URL of an empty database of the test's own, dropped afterwards."""
    name = f"conquiet_test_{uuid4().hex[:12]}"
    mysql_server.ensure_running()
    yield mysql_server.create_database(name)
    mysql_server.ensure_running()
    mysql_server.drop_database(name)


@pytest.fixture
def amqp_url(rabbitmq_server: SharedRabbitMQ) -> Iterator[str]:
    """AMQP URL of a vhost of the test's own, deleted afterwards."""
    name = f"test-{uuid4().hex[:12]}"
    rabbitmq_server.ensure_running()
    yield rabbitmq_server.create_vhost(name)
    rabbitmq_server.ensure_running()
    rabbitmq_server.delete_vhost(name)


@pytest.fixture
def private_redis(conquiet_servers: SharedServers) -> Iterator[Callable[..., RedisServer]]:
    """``private_redis(aof=True)`` starts a Redis of the test's own; see ``RedisServer`` for the arguments."""
    from contextlib import ExitStack

    from conquiet.testing.redis import RedisServer

    with ExitStack() as stack:

        def start(**options: Any) -> RedisServer:
            server = stack.enter_context(RedisServer(**options))
            conquiet_servers.note(server)
            return server

        yield start


@pytest.fixture
def private_mysql(
    conquiet_servers: SharedServers, conquiet_mysql_flavour: MySQLFlavour | None
) -> Iterator[Callable[..., MySQLServer]]:
    """``private_mysql()`` starts a server of the test's own, of the flavour the test runs on."""
    from contextlib import ExitStack

    from conquiet.testing.mysql import MySQLServer

    with ExitStack() as stack:

        def start(**options: Any) -> MySQLServer:
            server = stack.enter_context(MySQLServer(**{"flavour": conquiet_mysql_flavour, **options}))
            conquiet_servers.note(server)
            return server

        yield start


@pytest.fixture
def private_rabbitmq(conquiet_servers: SharedServers) -> Iterator[Callable[..., RabbitMQServer]]:
    """``private_rabbitmq()`` starts a broker of the test's own. It takes seconds: only for tests that kill it."""
    from contextlib import ExitStack

    from conquiet.testing.rabbitmq import RabbitMQServer

    with ExitStack() as stack:

        def start(**options: Any) -> RabbitMQServer:
            server = stack.enter_context(RabbitMQServer(**options))
            conquiet_servers.note(server)
            return server

        yield start


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[str], FaultProxy]]:
    """``fault_proxy(url)`` stands a proxy before the server of ``url``; ``proxy.url_for(url)`` leads through it."""
    from contextlib import ExitStack
    from urllib.parse import urlsplit

    from conquiet.testing.proxy import FaultProxy

    with ExitStack() as stack:

        def start(url: str) -> FaultProxy:
            parts = urlsplit(url)
            if parts.hostname is None or parts.port is None:
                raise ValueError("the URL needs a host and a port")
            return stack.enter_context(FaultProxy(parts.hostname, parts.port))

        yield start
