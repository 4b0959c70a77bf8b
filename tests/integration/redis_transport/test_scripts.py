"""Scripts on a cloned client: sent by digest, once, with errors of the queue."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError

from conquiet.errors import QueueError
from conquiet.redis_transport.client import clone_async, clone_sync
from conquiet.redis_transport.limiter import MAX_CONCURRENT
from conquiet.redis_transport.scripts import Script, load_script, run_many

ADD = Script.from_source("add", "return redis.call('INCRBY', KEYS[1], ARGV[1])", action="adding")


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    given = redis.asyncio.Redis.from_url(redis_url)
    clone = clone_async(given)
    yield clone
    await clone.aclose()
    await given.aclose()


async def test_a_script_the_server_does_not_have_is_sent_whole(client: redis.asyncio.Redis, key_prefix: str) -> None:
    await client.script_flush()

    first = await ADD.call(client, (f"{key_prefix}n",), (2,), stream="orders")
    second = await ADD.call(client, (f"{key_prefix}n",), (3,), stream="orders")

    assert (first, second) == (2, 5)


async def test_a_refusal_names_the_action_and_the_stream_and_no_argument(
    client: redis.asyncio.Redis, key_prefix: str
) -> None:
    with pytest.raises(QueueError, match="adding on stream 'orders' was refused") as caught:
        await ADD.call(client, (f"{key_prefix}n",), ("secret",), stream="orders")

    assert "secret" not in str(caught.value)
    assert not caught.value.in_doubt


async def test_more_callers_than_allowed_wait_for_each_other(client: redis.asyncio.Redis, key_prefix: str) -> None:
    calls = [ADD.call(client, (f"{key_prefix}n",), (1,), stream="orders") for _ in range(5 * MAX_CONCURRENT)]

    assert sorted(await asyncio.gather(*calls)) == list(range(1, 5 * MAX_CONCURRENT + 1))


async def test_scripts_run_together_and_refusals_are_among_the_replies(
    client: redis.asyncio.Redis, key_prefix: str
) -> None:
    await client.script_flush()
    key = f"{key_prefix}n"

    replies = await run_many(client, [(ADD, (key,), (1,)), (ADD, (key,), ("x",)), (ADD, (key,), (2,))])

    assert replies[0] == 1
    assert isinstance(replies[1], ResponseError)
    assert replies[2] == 3


def test_a_synchronous_call_does_the_same(redis_url: str, key_prefix: str) -> None:
    with redis.Redis.from_url(redis_url) as given, clone_sync(given) as client:
        client.script_flush()

        assert ADD.call_sync(client, (f"{key_prefix}n",), (4,), stream="orders") == 4
        with pytest.raises(QueueError, match="adding on stream 'orders'"):
            ADD.call_sync(client, (f"{key_prefix}n",), ("x",), stream="orders")


def test_a_packages_script_is_read_once() -> None:
    script = load_script("conquiet.processor", "promote_due", "looking")

    assert script is load_script("conquiet.processor", "promote_due", "looking")
    assert (script.name, script.action, len(script.sha)) == ("promote_due", "looking", 40)
