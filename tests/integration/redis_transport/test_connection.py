"""The synchronous connection."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.exceptions import ResponseError

from conquiet.errors import LifecycleError, QueueError
from conquiet.redis_transport.client import clone_sync
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.connection import RedisConnection
from conquiet.redis_transport.errors import is_aborted
from conquiet.testing import FaultProxy, RedisServer


@pytest.fixture
def connection(redis_url: str) -> Iterator[RedisConnection]:
    with redis.Redis.from_url(redis_url) as given, RedisConnection(clone_sync(given)) as made:
        yield made


def test_a_reply_is_what_the_server_sent(connection: RedisConnection, key_prefix: str) -> None:
    assert connection.call("SET", pack("SET", f"{key_prefix}k", "v")) == b"OK"
    assert connection.call("GET", pack("GET", f"{key_prefix}k")) == b"v"


def test_a_refusal_is_a_queue_error_and_the_connection_is_kept(connection: RedisConnection) -> None:
    before = connection.call("CLIENT", pack("CLIENT", "ID"))

    with pytest.raises(QueueError, match="HSET on stream 'orders', group 'billing' was refused") as caught:
        connection.call("HSET", pack("HSET", "k"), stream="orders", group="billing")

    assert isinstance(caught.value.__cause__, ResponseError)
    assert (caught.value.command, caught.value.in_doubt) == ("HSET", False)
    assert connection.call("CLIENT", pack("CLIENT", "ID")) == before


def test_refusals_of_a_pipeline_are_among_its_replies(connection: RedisConnection) -> None:
    first, second, third = connection.pipeline("PING", pack("PING") + pack("HSET", "k") + pack("PING"), 3)

    assert first == third == b"PONG"
    assert isinstance(second, ResponseError)


def test_a_command_that_found_no_server_was_not_sent() -> None:
    with RedisConnection(clone_sync(redis.Redis(port=1))) as nowhere, pytest.raises(QueueError) as caught:
        nowhere.call("PING", pack("PING"))

    assert not caught.value.in_doubt
    assert "127.0.0.1:1" in str(caught.value) or "localhost:1" in str(caught.value)


@pytest.mark.parametrize("count", [1, 2])
def test_after_a_refusal_by_a_replica_a_new_connection_is_opened(
    private_redis: Callable[..., RedisServer], count: int
) -> None:
    """The address may lead to the new master by now: another machine has its name."""
    server = private_redis()
    with redis.Redis.from_url(server.url) as given, RedisConnection(clone_sync(given)) as connection:
        before = connection.call("CLIENT", pack("CLIENT", "ID"))
        server.call("REPLICAOF", "127.0.0.1", "1")

        if count == 1:
            with pytest.raises(QueueError, match="READONLY"):
                connection.call("SET", pack("SET", "k", "v"))
        else:
            assert len(connection.pipeline("SET", pack("SET", "k", "v") * count, count)) == count

        assert connection.call("CLIENT", pack("CLIENT", "ID")) != before


def test_a_closed_connection_refuses_calls(connection: RedisConnection) -> None:
    connection.close()

    with pytest.raises(LifecycleError):
        connection.call("PING", pack("PING"))


def test_an_abort_ends_a_log_in_that_gets_no_reply() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as threads:
        given = redis.Redis(port=silent.getsockname()[1], password="secret")
        with RedisConnection(clone_sync(given, socket_timeout_s=60.0)) as connection:
            waiting = threads.submit(connection.call, "PING", pack("PING"))
            peer, _ = silent.accept()
            assert peer.recv(4096), "the log-in is sent"

            connection.abort()

            error = waiting.exception(timeout=10)
            peer.close()
    assert isinstance(error, QueueError)
    assert not error.in_doubt, "the command itself was never sent"
    assert is_aborted(error)


def test_a_reply_lost_after_an_abort_was_not_aborted(fault_proxy: Callable[[str], FaultProxy], redis_url: str) -> None:
    """The acknowledgement of a handler that outlived a forced stop: its failure is reported like any other."""
    proxy = fault_proxy(redis_url)
    with (
        redis.Redis.from_url(proxy.url_for(redis_url)) as given,
        RedisConnection(clone_sync(given)) as connection,
    ):
        connection.abort()
        proxy.cut_reply_after(0, after_request_matching=b"ECHO")
        with pytest.raises(QueueError) as caught:
            connection.call("ECHO", pack("ECHO", "x"))

    assert caught.value.in_doubt
    assert not is_aborted(caught.value)
