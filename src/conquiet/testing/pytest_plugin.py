"""Fixtures with real servers, for the tests of conquiet and of its users.

Installing conquiet does not load this plugin: the names of its fixtures are common, and a project may have fixtures
with these names. One line in the project's top ``conftest.py`` turns it on:

    pytest_plugins = ["conquiet.testing.pytest_plugin"]

so does ``-p conquiet.testing.pytest_plugin`` on the command line or in ``addopts``. Loading it imports no client
library and starts no server; a server starts when a test first uses it. A missing server fails the test that needs
it: a skip would look like a pass.

    redis_server  mysql_server  postgres_server  rabbitmq_server    shared by the run; do not kill them
    redis_url     db_url        postgres_url     amqp_url           an empty database or vhost, for one test
    private_redis private_mysql private_postgres private_rabbitmq   factories for servers to kill, pause, restart
    redis_cluster                                                   three masters and three replicas, shared, empty
    private_redis_cluster                                           factory for a cluster to break
    key_prefix                                                      a prefix that no other test uses
    fault_proxy                                                     factory: fault_proxy(url) -> FaultProxy

``CONQUIET_TEST_REDIS_URL``, ``CONQUIET_TEST_DB_URL``, ``CONQUIET_TEST_POSTGRES_URL`` and ``CONQUIET_TEST_RABBIT_URL``
replace the shared servers by running ones. ``CONQUIET_TEST_DB_FLAVOURS=mariadb,mysql`` names the MySQL servers that
must exist; without it the tests run on the servers that are found.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conquiet.testing.discovery import MySQLFlavour
    from conquiet.testing.mysql import MySQLServer
    from conquiet.testing.postgres import PostgresServer
    from conquiet.testing.proxy import FaultProxy
    from conquiet.testing.rabbitmq import RabbitMQServer
    from conquiet.testing.redis import RedisServer
    from conquiet.testing.redis_cluster import RedisClusterServer
    from conquiet.testing.shared import SharedMySQL, SharedPostgres, SharedRabbitMQ, SharedRedis, SharedServers

S = TypeVar("S", "RedisServer", "RedisClusterServer", "MySQLServer", "PostgresServer", "RabbitMQServer")

_FLAVOUR_FIXTURE = "conquiet_mysql_flavour"
_FLAVOURS_VARIABLE = "CONQUIET_TEST_DB_FLAVOURS"
_DATABASE = "conquiet_test_"
_SERVERS_KEY: pytest.StashKey[Any] = pytest.StashKey()
_FLAVOURS_KEY: pytest.StashKey[list[MySQLFlavour | None]] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses a MySQL server once per flavour."""
    # Parametrised here and not on the fixture, because searching for programs takes time that a run without MySQL
    # should not spend. A project may override mysql_server with its own: then this fixture is not in its closure.
    if _FLAVOUR_FIXTURE in metafunc.fixturenames:
        # Once per run: the search runs the found program, which takes 40 ms.
        if (flavours := metafunc.config.stash.get(_FLAVOURS_KEY, None)) is None:
            flavours = metafunc.config.stash[_FLAVOURS_KEY] = _flavours()
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
    # If none is found, one test remains, which fails and names the package to install.
    return [*available_mysql_flavours()] or [None]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the server versions that the run used."""
    servers = config.stash.get(_SERVERS_KEY, None)
    if servers is not None and servers.used:
        terminalreporter.write_line("servers used: " + ", ".join(servers.used))


@pytest.fixture(scope="session")
def conquiet_servers(pytestconfig: pytest.Config) -> Iterator[SharedServers]:
    """Yield the servers of the run; each starts on first use."""
    from conquiet.testing.shared import SharedServers

    servers = pytestconfig.stash[_SERVERS_KEY] = SharedServers()
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def conquiet_mysql_flavour(request: pytest.FixtureRequest) -> MySQLFlavour | None:
    """Return the flavour the current test runs on; None when a server was given by URL."""
    flavour: MySQLFlavour | None = request.param
    return flavour


@pytest.fixture(scope="session")
def redis_server(conquiet_servers: SharedServers) -> SharedRedis:
    """Return the Redis server shared by the whole run."""
    return conquiet_servers.redis()


@pytest.fixture(scope="session")
def mysql_server(conquiet_servers: SharedServers, conquiet_mysql_flavour: MySQLFlavour | None) -> SharedMySQL:
    """Return the MySQL or MariaDB server shared by the whole run; a test that uses it runs once per flavour."""
    return conquiet_servers.mysql(conquiet_mysql_flavour)


@pytest.fixture(scope="session")
def postgres_server(conquiet_servers: SharedServers) -> SharedPostgres:
    """Return the PostgreSQL server shared by the whole run."""
    return conquiet_servers.postgres()


@pytest.fixture(scope="session")
def rabbitmq_server(conquiet_servers: SharedServers) -> SharedRabbitMQ:
    """Return the RabbitMQ server shared by the whole run: it takes seconds to start."""
    return conquiet_servers.rabbitmq()


@pytest.fixture
def key_prefix() -> str:
    """Return a prefix for keys, groups and queues that no other test uses; on a Redis given by URL, use it always."""
    return f"test-{uuid4().hex[:12]}:"


@pytest.fixture
def redis_url(redis_server: SharedRedis, key_prefix: str) -> Iterator[str]:
    """Yield the URL of an empty Redis; on a server given by URL only keys under ``key_prefix`` are deleted."""
    from conquiet.testing.redis import RedisServer

    redis_server.ensure_running()
    if isinstance(redis_server, RedisServer):
        # Before the test, not after it: the teardown of a failed test can still inspect its keys.
        redis_server.flush()
        yield redis_server.url
    else:
        yield redis_server.url
        redis_server.delete_prefix(key_prefix)


@contextmanager
def _created(
    prefix: str,
    server: SharedMySQL | SharedPostgres | SharedRabbitMQ,
    create: Callable[[str], str],
    delete: Callable[[str], None],
) -> Iterator[str]:
    """Yield the URL of what ``create`` makes on a shared server for one test, and ``delete`` it afterwards."""
    name = f"{prefix}{uuid4().hex[:12]}"
    server.ensure_running()
    yield create(name)
    server.ensure_running()  # the test may have killed it
    delete(name)


@pytest.fixture
def db_url(mysql_server: SharedMySQL) -> Iterator[str]:
    """Yield the SQLAlchemy URL of an empty database for this test; it is dropped afterwards."""
    with _created(_DATABASE, mysql_server, mysql_server.create_database, mysql_server.drop_database) as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: SharedPostgres) -> Iterator[str]:
    """Yield the SQLAlchemy URL (psycopg) of an empty PostgreSQL database for this test, dropped afterwards."""
    with _created(_DATABASE, postgres_server, postgres_server.create_database, postgres_server.drop_database) as url:
        yield url


@pytest.fixture
def amqp_url(rabbitmq_server: SharedRabbitMQ) -> Iterator[str]:
    """Yield the AMQP URL of a vhost for this test; it is deleted afterwards."""
    with _created("test-", rabbitmq_server, rabbitmq_server.create_vhost, rabbitmq_server.delete_vhost) as url:
        yield url


@contextmanager
def _starting(kind: Callable[..., S], servers: SharedServers) -> Iterator[Callable[..., S]]:
    """Yield a function that starts servers of one kind; they are stopped at the end of the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> S:
            server = stack.enter_context(kind(**options))
            servers.record(server)
            return server

        yield start


@pytest.fixture
def private_redis(conquiet_servers: SharedServers) -> Iterator[Callable[..., RedisServer]]:
    """Yield a factory: ``private_redis(aof=True)`` starts a Redis for this test; ``RedisServer`` has the arguments."""
    from conquiet.testing.redis import RedisServer

    with _starting(RedisServer, conquiet_servers) as start:
        yield start


@pytest.fixture
def redis_cluster(conquiet_servers: SharedServers) -> RedisClusterServer:
    """Return the Redis Cluster shared by the run, empty and healthy. A test may move slots and switch masters."""
    cluster = conquiet_servers.redis_cluster()
    cluster.ensure_healthy()
    cluster.flush()
    return cluster


@pytest.fixture
def private_redis_cluster(conquiet_servers: SharedServers) -> Iterator[Callable[..., RedisClusterServer]]:
    """Yield a factory: ``private_redis_cluster()`` starts a cluster for this test, in three seconds."""
    from conquiet.testing.redis_cluster import RedisClusterServer

    with _starting(RedisClusterServer, conquiet_servers) as start:
        yield start


@pytest.fixture
def private_mysql(
    conquiet_servers: SharedServers, conquiet_mysql_flavour: MySQLFlavour | None
) -> Iterator[Callable[..., MySQLServer]]:
    """Yield a factory: ``private_mysql()`` starts a server for this test, of the flavour the test runs on."""
    from conquiet.testing.mysql import MySQLServer

    with _starting(partial(MySQLServer, flavour=conquiet_mysql_flavour), conquiet_servers) as start:
        yield start


@pytest.fixture
def private_postgres(conquiet_servers: SharedServers) -> Iterator[Callable[..., PostgresServer]]:
    """Yield a factory: ``private_postgres()`` starts a server for this test; see ``PostgresServer``."""
    from conquiet.testing.postgres import PostgresServer

    with _starting(PostgresServer, conquiet_servers) as start:
        yield start


@pytest.fixture
def private_rabbitmq(conquiet_servers: SharedServers) -> Iterator[Callable[..., RabbitMQServer]]:
    """Yield a factory: ``private_rabbitmq()`` starts a broker, in seconds; use it only for tests that kill it."""
    from conquiet.testing.rabbitmq import RabbitMQServer

    with _starting(RabbitMQServer, conquiet_servers) as start:
        yield start


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[str], FaultProxy]]:
    """Yield a factory: ``fault_proxy(url)`` puts a proxy in front of a server; ``proxy.url_for(url)`` leads to it."""
    from urllib.parse import urlsplit

    from conquiet.testing.proxy import FaultProxy

    with ExitStack() as stack:

        def start(url: str) -> FaultProxy:
            parts = urlsplit(url)
            if parts.hostname is None or parts.port is None:
                raise ValueError("the URL needs a host and a port")
            return stack.enter_context(FaultProxy(parts.hostname, parts.port))

        yield start
