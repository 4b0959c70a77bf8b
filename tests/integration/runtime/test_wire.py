"""The engine's connection, on both event loops: each reply once and in order, and an end that is always noticed."""

import asyncio
import contextlib
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio
import uvloop
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as ReplyTimeoutError

from conquiet.queue.commands import pack
from conquiet.runtime import Consumer
from conquiet.runtime.line import _LOOKS
from conquiet.runtime.servers import OneServer
from conquiet.runtime.wire import Wire, WireLostError

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run(body: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await asyncio.wait_for(body(), 60)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(whole())

    return run


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Wire]:
    servers = OneServer(redis.asyncio.Redis.from_url(url))
    wire = Wire(servers, "-", "test")
    await wire.open()
    try:
        yield wire
    finally:
        await wire.close()
        await servers.close()


def hurry(wire: Wire, timeout_s: float) -> None:
    """Shorten the patience of a wire that is open: opening it may take a busy machine longer."""
    line = wire._line
    assert line is not None
    line._look_every_s = timeout_s / (_LOOKS - 1)
    if line._timer is not None:
        line._timer.cancel()
        line._timer = None


def test_replies_come_in_order_and_refusals_among_them(on_loop: Run, redis_url: str, key_prefix: str) -> None:
    async def body() -> None:
        async with opened(redis_url) as wire:
            key = f"{key_prefix}k"
            wire.send([pack("SET", key, "1"), pack("LPUSH", key, "x"), pack("GET", key)])
            assert await wire.receive(1) == [b"OK"]
            refusal, value = await wire.receive(2)
            assert isinstance(refusal, ResponseError)
            assert value == b"1"
            assert wire.is_open

    on_loop(body)


def test_a_reply_of_megabytes_arrives_whole(on_loop: Run, redis_url: str, key_prefix: str) -> None:
    async def body() -> None:
        async with opened(redis_url) as wire:
            big = bytes(range(256)) * 20_000
            await wire.call([pack("SET", f"{key_prefix}big", big)])
            assert await wire.call([pack("GET", f"{key_prefix}big"), pack("ECHO", "next")]) == [big, b"next"]

    on_loop(body)


def test_a_server_that_says_nothing_is_given_up(on_loop: Run, redis_url: str, fault_proxy: Any) -> None:
    proxy = fault_proxy(redis_url)

    async def body() -> None:
        async with opened(proxy.url_for(redis_url)) as wire:
            hurry(wire, 0.3)
            await asyncio.to_thread(proxy.stall)
            began = time.monotonic()
            with pytest.raises(WireLostError) as caught:
                await wire.call([pack("PING")])
            assert isinstance(caught.value.reason, ReplyTimeoutError)
            assert time.monotonic() - began >= 0.3
            assert not wire.is_open
            await asyncio.to_thread(proxy.resume)

    on_loop(body)


def test_a_reply_that_came_while_the_loop_was_blocked_is_not_taken_for_silence(on_loop: Run, redis_url: str) -> None:
    """There are loops whose timers run before the bytes that have arrived are read."""

    async def body() -> None:
        async with opened(redis_url) as wire:
            call = asyncio.create_task(wire.call([pack("PING")]))
            await asyncio.sleep(0)
            line: Any = wire._line
            select.select([line._transport.get_extra_info("socket").fileno()], [], [])  # blocks the loop
            line._timer.cancel()
            line._look()
            assert await call == [b"PONG"]
            assert line.lost is None

    on_loop(body)


@pytest.mark.parametrize("how", ["fin", "middle of a reply"])
def test_a_connection_that_ends_is_lost_at_once(on_loop: Run, redis_url: str, fault_proxy: Any, how: str) -> None:
    proxy = fault_proxy(redis_url)

    async def body() -> None:
        async with opened(proxy.url_for(redis_url)) as wire:
            if how == "fin":
                proxy.drop_next_reply(b"ECHO")
            else:
                proxy.cut_reply_after(100, b"ECHO")
            with pytest.raises(WireLostError):
                await wire.call([pack("ECHO", "x" * 1_000)])
            with pytest.raises(WireLostError):
                await wire.call([pack("PING")])
            await wire.open()
            assert await wire.call([pack("PING")]) == [b"PONG"]

    on_loop(body)


def test_an_end_while_nobody_listened_is_found_by_the_next_call(on_loop: Run, redis_url: str, fault_proxy: Any) -> None:
    proxy = fault_proxy(redis_url)

    async def body() -> None:
        async with opened(proxy.url_for(redis_url)) as wire:
            await asyncio.to_thread(proxy.cut)
            with pytest.raises(WireLostError):
                await wire.call([pack("PING")])

    on_loop(body)


def test_what_is_no_reply_ends_the_connection(on_loop: Run) -> None:
    """A proxy's error page, say. Whatever follows on that connection could be anybody's."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if b"PING" in data:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            elif b"CLIENT" in data:
                writer.write(b":1\r\n" if b"ID" in data else b"+OK\r\n" * data.count(b"SETINFO"))
        writer.close()

    async def body() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with opened(f"redis://127.0.0.1:{port}/0") as wire:
            with pytest.raises(WireLostError) as caught:
                await wire.call([pack("PING")])
            assert isinstance(caught.value.reason, InvalidResponse)
            assert not wire.is_open
        server.close()
        await server.wait_closed()

    on_loop(body)


def test_a_master_that_became_a_replica_counts_as_lost(on_loop: Run, private_redis: Any) -> None:
    """Another connection may lead to its successor. Taken for a refusal, an acknowledgement would be given up."""
    server = private_redis()

    async def body() -> None:
        async with opened(server.url) as wire:
            await asyncio.to_thread(server.call, "REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(WireLostError) as caught:
                await wire.call([pack("SET", "k", "v")])
            assert isinstance(caught.value.reason, ReadOnlyError)

    on_loop(body)


def test_a_tls_connection_is_read_like_any_other(on_loop: Run, private_redis: Any) -> None:
    server = private_redis(tls=True, password="secret")

    async def body() -> None:
        async with opened(server.url) as wire:
            assert await wire.call([pack("ECHO", "x" * 300_000)]) == [b"x" * 300_000]

    on_loop(body)


def test_an_engine_works_on_either_loop(on_loop: Run, redis_url: str, stream: str, enqueue: Any, pending: Any) -> None:
    enqueue(500)
    seen: list[str] = []

    async def body() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:

            async def handler(message: Any, ctx: Any) -> None:
                seen.append(message.id)
                if len(seen) == 500:
                    engine.stop()

            engine = Consumer(streams=[stream], redis=client, handler=handler, concurrency=10)
            report = await engine.start()
            assert report.succeeded == 500

    on_loop(body)

    assert len(set(seen)) == 500
    assert pending() == []


def test_what_is_done_at_once_is_acknowledged_with_the_next_read(
    on_loop: Run, redis_url: str, stream: str, enqueue: Any, raw: Any
) -> None:
    """No connection but the reader's is used, and no write but that of the read: that is what keeps latency low."""

    async def body() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            done = asyncio.Event()

            async def handler(message: Any, ctx: Any) -> None:
                done.set()

            async with Consumer(streams=[stream], redis=client, handler=handler, concurrency=10):
                with raw.monitor() as monitor:
                    for _ in range(5):
                        done.clear()
                        enqueue(1)
                        await done.wait()
                    commands: list[tuple[str, str]] = []
                    while sum(name == "XACK" for name, _ in commands) < 5:
                        told = await asyncio.to_thread(monitor.next_command)
                        commands.append((told["command"].split()[0], told["client_port"]))
        readers = {port for name, port in commands if name == "XREADGROUP"}
        assert {port for name, port in commands if name == "XACK"} == readers

    on_loop(body)
