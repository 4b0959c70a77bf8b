"""The plugin as a user's project loads it: a pytest run in a separate folder, with the one line in conftest.py."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conquiet.testing import FaultProxy, MySQLServer, RedisServer
from conquiet.testing.shared import SharedRedis

HANGS_S = 300.0
"""Only a run that hangs takes as long as this, on a busy machine too."""

RunPytest = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPytest:
    def run(text: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "conftest.py").write_text('pytest_plugins = ["conquiet.testing.pytest_plugin"]\n')
        (tmp_path / "test_theirs.py").write_text(text)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-v", "-rA"]
        # Its import alone is half of the time of such a run, and no part of what is proved here.
        command += ["-p", "no:hypothesispytest"]
        return subprocess.run(
            [*command, "test_theirs.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANGS_S
        )

    return run


def test_each_test_gets_an_empty_redis_and_the_run_names_its_servers(run_pytest: RunPytest) -> None:
    done = run_pytest("""
import redis

def test_one(redis_server, redis_url):
    redis_server.call("SET", "left", "over")

def test_two(redis_server, redis_url):
    assert redis_server.call("DBSIZE") == 0

def test_three(redis_server):
    redis_server.kill()

def test_four(redis_server, redis_url):
    assert redis_server.call("PING") == b"PONG"
""")

    assert "4 passed" in done.stdout, done.stdout
    assert "servers used: redis " in done.stdout


def test_a_missing_server_fails_the_test_and_does_not_skip_it(run_pytest: RunPytest) -> None:
    done = run_pytest("def test_it(redis_url): pass", CONQUIET_REDIS_SERVER="/nowhere/redis-server")

    assert "1 error" in done.stdout, done.stdout
    assert "skipped" not in done.stdout
    assert "CONQUIET_REDIS_SERVER names '/nowhere/redis-server'" in done.stdout


def test_a_redis_given_by_url_is_neither_flushed_nor_killed(
    run_pytest: RunPytest, private_redis: Callable[..., RedisServer]
) -> None:
    given = private_redis(password="secret")
    given.call("SET", "foreign", "data")
    given.call("SET", "test-[a]:mine", "not under the prefix")

    done = run_pytest(
        """
import pytest, redis
from conquiet.testing import ServerNotOwnedError

def test_theirs(redis_url, redis_server, key_prefix):
    with redis.Redis.from_url(redis_url) as client:
        assert client.get("foreign") == b"data"
        for number in range(1200):
            client.set(f"{key_prefix}{number}", 1)
    for refused in (redis_server.kill, redis_server.restart, redis_server.pause, redis_server.resume):
        with pytest.raises(ServerNotOwnedError, match="CONQUIET_TEST_REDIS_URL"):
            refused()
""",
        CONQUIET_TEST_REDIS_URL=given.url,
    )

    assert "1 passed" in done.stdout, done.stdout
    assert f"servers used: redis {given.version}" in done.stdout
    assert given.call("DBSIZE") == 2


def test_a_redis_given_by_url_may_speak_tls(run_pytest: RunPytest, private_redis: Callable[..., RedisServer]) -> None:
    given = private_redis(tls=True)

    done = run_pytest("def test_theirs(redis_url): pass", CONQUIET_TEST_REDIS_URL=given.url)

    assert "1 passed" in done.stdout, done.stdout


def test_a_database_server_given_by_url_is_left_as_it_was(run_pytest: RunPytest, mysql_server: MySQLServer) -> None:
    done = run_pytest(
        """
import sqlalchemy as sa

def test_theirs(db_url, mysql_server):
    engine = sa.create_engine(db_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (id INT)"))
        assert "conquiet_test_" in str(connection.execute(sa.text("SELECT DATABASE()")).scalar())
    engine.dispose()
""",
        CONQUIET_TEST_DB_URL=mysql_server.url,
    )

    assert "test_theirs[default] PASSED" in done.stdout, done.stdout
    assert f"servers used: {mysql_server.name} {mysql_server.version}" in done.stdout


def test_a_flavour_that_was_asked_for_and_is_missing_is_an_error(
    run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONQUIET_SERVERS_DIR", raising=False)
    monkeypatch.delenv("CONQUIET_MYSQLD", raising=False)
    done = run_pytest("def test_theirs(mysql_server): pass", CONQUIET_TEST_DB_FLAVOURS="mysql", PATH="/nowhere")

    assert "test_theirs[mysql] ERROR" in done.stdout, done.stdout
    assert "No mysql server was found" in done.stdout


def test_an_unknown_flavour_is_a_usage_error(run_pytest: RunPytest) -> None:
    done = run_pytest("def test_theirs(db_url): pass", CONQUIET_TEST_DB_FLAVOURS="oracle")

    assert "known are mariadb and mysql" in done.stdout + done.stderr


def test_a_project_may_override_a_fixture_with_its_own(run_pytest: RunPytest) -> None:
    done = run_pytest("""
import pytest

@pytest.fixture
def mysql_server():
    return "theirs"

def test_theirs(mysql_server):
    assert mysql_server == "theirs"
""")

    assert "test_theirs.py::test_theirs PASSED" in done.stdout, done.stdout


def test_a_fault_proxy_stands_before_the_server_of_a_url(
    fault_proxy: Callable[[str], FaultProxy], redis_server: SharedRedis, redis_url: str
) -> None:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    proxy = fault_proxy(redis_url)
    with redis.Redis.from_url(proxy.url_for(redis_url), retry=Retry(NoBackoff(), 0)) as client:
        proxy.drop_next_reply(b"XADD")
        with pytest.raises(redis.ConnectionError):
            client.xadd("orders", {"data": "{}"})
        proxy.wait_for_fault()

        assert client.xlen("orders") == 1


def test_a_fault_proxy_needs_a_complete_address(fault_proxy: Callable[[str], FaultProxy]) -> None:
    with pytest.raises(ValueError, match="host and a port"):
        fault_proxy("redis://")
