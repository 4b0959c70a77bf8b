"""Plain commands on a redis-py client: raw replies, errors of the queue, one round trip."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError
from tests.integration.conftest import RunOnLoop

from conquiet.errors import QueueError
from conquiet.redis_transport.client import clone_async, clone_sync
from conquiet.redis_transport.client_commands import command, command_sync, commands, commands_sync
from conquiet.redis_transport.limiter import MAX_CONCURRENT
from conquiet.redis_transport.replies import as_mapping, scored, streams_read
from conquiet.testing import FaultProxy, wait_until_async


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
async def given(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=request.param) as client:
        yield client


async def test_replies_read_the_same_from_a_callers_client_of_either_protocol(
    given: redis.asyncio.Redis, key_prefix: str
) -> None:
    hashed, stream, ranked = (f"{key_prefix}{kind}" for kind in ("hash", "stream", "set"))
    await command(given, "HSET", hashed, "name", "value")
    await command(given, "XADD", stream, "1-0", "name", "value")
    await command(given, "ZADD", ranked, "1.5", "member")

    assert as_mapping(await command(given, "HGETALL", hashed)) == {b"name": b"value"}
    read = await command(given, "XREAD", "STREAMS", stream, "0-0")
    assert streams_read(read) == [(stream.encode(), [[b"1-0", [b"name", b"value"]]])]
    found = await command(given, "ZRANGEBYSCORE", ranked, "-inf", "+inf", "WITHSCORES")
    assert scored(found) == [(b"member", b"1.5")]
    assert await command(given, "ZSCAN", ranked, 0) == [b"0", [b"member", b"1.5"]]


async def test_a_refusal_names_the_action_and_the_stream(redis_url: str, key_prefix: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as given, clone_async(given) as client:
        await command(client, "SET", f"{key_prefix}n", "text")
        wrong = ("INCR", f"{key_prefix}n")

        with pytest.raises(QueueError, match="INCR on stream 'orders', group 'g' was refused"):
            await command(client, *wrong, stream="orders", group="g")
        with pytest.raises(QueueError, match="counting on stream 'orders' was refused"):
            await commands(client, [wrong, ("TIME",)], action="counting", stream="orders")
        kept, now = await commands(client, [wrong, ("TIME",)], action="counting", keep_errors=True)

    assert isinstance(kept, ResponseError)
    assert [int(part) > 0 for part in now] == [True, True]


def test_synchronous_commands_do_the_same(redis_url: str, key_prefix: str) -> None:
    with redis.Redis.from_url(redis_url) as given, clone_sync(given) as client:
        assert command_sync(client, "HSET", f"{key_prefix}h", "name", "value") == 1
        assert as_mapping(command_sync(client, "HGETALL", f"{key_prefix}h")) == {b"name": b"value"}
        wrong = ("INCR", f"{key_prefix}h")
        with pytest.raises(QueueError, match="counting on stream 'orders' was refused"):
            commands_sync(client, [wrong], action="counting", stream="orders")
        (kept,) = commands_sync(client, [wrong], action="counting", keep_errors=True)

    assert isinstance(kept, ResponseError)


async def test_a_lost_reply_leaves_the_command_in_doubt(
    fault_proxy: Callable[[str], FaultProxy], redis_url: str, key_prefix: str
) -> None:
    proxy = fault_proxy(redis_url)
    async with redis.asyncio.Redis.from_url(proxy.url_for(redis_url)) as given, clone_async(given) as client:
        proxy.drop_next_reply(b"INCR")
        with pytest.raises(QueueError, match="got no answer") as caught:
            await command(client, "INCR", f"{key_prefix}n")

        assert caught.value.in_doubt
        assert await command(client, "GET", f"{key_prefix}n") == b"1"


async def test_commands_that_block_do_not_hold_up_others(redis_url: str, key_prefix: str) -> None:
    """More waiters than commands may be in flight: the command that ends their wait must get through."""
    stream = f"{key_prefix}results"
    async with redis.asyncio.Redis.from_url(redis_url) as given, clone_async(given) as client:
        read = ("XREAD", "BLOCK", 60_000, "STREAMS", stream, "0-0")
        waiting = [asyncio.create_task(command(client, *read, blocking=True)) for _ in range(MAX_CONCURRENT + 1)]

        async def all_wait() -> bool:
            return int(dict(await client.info("clients"))["blocked_clients"]) >= len(waiting)

        await wait_until_async(all_wait)
        await command(client, "XADD", stream, "*", "state", "done")

        assert len(await asyncio.wait_for(asyncio.gather(*waiting), 30)) == MAX_CONCURRENT + 1


def test_a_connection_that_the_server_has_closed_is_lost_on_every_loop(
    on_loop: RunOnLoop, fault_proxy: Callable[[str], FaultProxy], redis_url: str
) -> None:
    """On uvloop a write to a closed transport raises a ``RuntimeError``, which no caller would take for an outage."""
    proxy = fault_proxy(redis_url)

    async def body() -> None:
        clone = clone_async(redis.asyncio.Redis.from_url(proxy.url_for(redis_url)))
        pool: Any = clone.connection_pool
        connection = await pool.get_connection()
        transport = connection._writer.transport
        await asyncio.to_thread(proxy.disconnect)
        await wait_until_async(transport.is_closing)

        clone.connection = connection  # the next command is sent on it
        with pytest.raises(QueueError, match="got no answer") as caught:
            await command(clone, "PING")

        assert caught.value.in_doubt
        await clone.aclose()

    on_loop(body)
