"""The asyncio connection on both event loops: each reply once and in order, and a lost connection is noticed."""

import asyncio
import contextlib
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as ReplyTimeoutError
from tests.tcp_servers import serving

from conquiet.redis_transport.async_connection import AsyncRedisConnection, ConnectionLostError
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.protocol import _TIMEOUT_CHECKS
from conquiet.redis_transport.topology import SingleServer
from conquiet.testing.proxy import FaultProxy
from conquiet.testing.redis import RedisServer

Run = Callable[[Callable[[], Awaitable[None]]], None]


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[AsyncRedisConnection]:
    topology = SingleServer(redis.asyncio.Redis.from_url(url))
    connection = AsyncRedisConnection(topology, "-", "test")
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()
        await topology.close()


def hurry(connection: AsyncRedisConnection, timeout_s: float) -> None:
    """Shorten the timeout of an open connection: opening it may take a busy machine longer."""
    protocol = connection._protocol
    assert protocol is not None
    protocol._check_every_s = timeout_s / (_TIMEOUT_CHECKS - 1)
    if protocol._timer is not None:
        protocol._timer.cancel()
        protocol._timer = None


def test_replies_come_in_order_and_refusals_among_them(on_loop: Run, redis_url: str, key_prefix: str) -> None:
    async def body() -> None:
        async with opened(redis_url) as connection:
            key = f"{key_prefix}k"
            connection.send([pack("SET", key, "1"), pack("LPUSH", key, "x"), pack("GET", key)])
            assert await connection.receive(1) == [b"OK"]
            refusal, value = await connection.receive(2)
            assert isinstance(refusal, ResponseError)
            assert value == b"1"
            assert connection.is_open

    on_loop(body)


def test_a_reply_of_megabytes_arrives_whole(on_loop: Run, redis_url: str, key_prefix: str) -> None:
    async def body() -> None:
        async with opened(redis_url) as connection:
            big = bytes(range(256)) * 20_000
            await connection.call([pack("SET", f"{key_prefix}big", big)])
            assert await connection.call([pack("GET", f"{key_prefix}big"), pack("ECHO", "next")]) == [big, b"next"]

    on_loop(body)


def test_a_server_that_says_nothing_is_given_up(
    on_loop: Run, redis_url: str, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(redis_url)

    async def body() -> None:
        async with opened(proxy.url_for(redis_url)) as connection:
            hurry(connection, 0.3)
            await asyncio.to_thread(proxy.stall)
            began = time.monotonic()
            with pytest.raises(ConnectionLostError) as caught:
                await connection.call([pack("PING")])
            assert isinstance(caught.value.reason, ReplyTimeoutError)
            assert time.monotonic() - began >= 0.3
            assert not connection.is_open
            await asyncio.to_thread(proxy.resume)

    on_loop(body)


def test_a_reply_that_came_while_the_loop_was_blocked_is_read(on_loop: Run, redis_url: str) -> None:
    """In some loops timers run before the bytes that have arrived are read."""

    async def body() -> None:
        async with opened(redis_url) as connection:
            call = asyncio.create_task(connection.call([pack("PING")]))
            await asyncio.sleep(0)
            protocol: Any = connection._protocol
            select.select([protocol._transport.get_extra_info("socket").fileno()], [], [])  # blocks the loop
            protocol._timer.cancel()
            protocol._check_timeout()
            assert await call == [b"PONG"]
            assert protocol.lost is None

    on_loop(body)


@pytest.mark.parametrize("how", ["fin", "middle of a reply"])
def test_a_connection_that_ends_is_lost_at_once(
    on_loop: Run, redis_url: str, fault_proxy: Callable[[str], FaultProxy], how: str
) -> None:
    proxy = fault_proxy(redis_url)

    async def body() -> None:
        async with opened(proxy.url_for(redis_url)) as connection:
            if how == "fin":
                proxy.drop_next_reply(b"ECHO")
            else:
                proxy.cut_reply_after(100, b"ECHO")
            with pytest.raises(ConnectionLostError):
                await connection.call([pack("ECHO", "x" * 1_000)])
            with pytest.raises(ConnectionLostError):
                await connection.call([pack("PING")])
            await connection.open()
            assert await connection.call([pack("PING")]) == [b"PONG"]

    on_loop(body)


def test_a_close_while_idle_is_found_by_the_next_call(
    on_loop: Run, redis_url: str, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(redis_url)

    async def body() -> None:
        async with opened(proxy.url_for(redis_url)) as connection:
            await asyncio.to_thread(proxy.disconnect)
            with pytest.raises(ConnectionLostError):
                await connection.call([pack("PING")])

    on_loop(body)


def test_bytes_that_are_not_a_reply_end_the_connection(on_loop: Run) -> None:
    """For example the error page of a proxy. Further bytes on that connection could belong to any request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if b"PING" in data:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            elif b"CLIENT" in data:
                writer.write(b":1\r\n" if b"ID" in data else b"+OK\r\n" * data.count(b"SETINFO"))

    async def body() -> None:
        async with serving(serve) as port, opened(f"redis://127.0.0.1:{port}/0") as connection:
            with pytest.raises(ConnectionLostError) as caught:
                await connection.call([pack("PING")])
            assert isinstance(caught.value.reason, InvalidResponse)
            assert not connection.is_open

    on_loop(body)


def test_a_master_that_became_a_replica_counts_as_lost(on_loop: Run, private_redis: Callable[..., RedisServer]) -> None:
    """Another connection may lead to its successor. Taken for a refusal, an acknowledgement would be given up."""
    server = private_redis()

    async def body() -> None:
        async with opened(server.url) as connection:
            await asyncio.to_thread(server.call, "REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(ConnectionLostError) as caught:
                await connection.call([pack("SET", "k", "v")])
            assert isinstance(caught.value.reason, ReadOnlyError)

    on_loop(body)


def test_a_tls_connection_is_read_like_any_other(on_loop: Run, private_redis: Callable[..., RedisServer]) -> None:
    server = private_redis(tls=True, password="secret")

    async def body() -> None:
        async with opened(server.url) as connection:
            assert await connection.call([pack("ECHO", "x" * 300_000)]) == [b"x" * 300_000]

    on_loop(body)
