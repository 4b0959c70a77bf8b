"""A connection that was never made has sent nothing: the error states it, and names the address."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from conquiet.app import App
from conquiet.config import QueueConfig
from conquiet.errors import QueueError
from conquiet.management import JobAdmin
from conquiet.management.redis_admin import RedisAdmin
from conquiet.processor import DeadLetters, Emitter, NewMessage, Processor, SyncEmitter
from conquiet.queue import RedisStreamsQueue
from conquiet.redis_transport.client import clone_async, clone_sync
from conquiet.redis_transport.errors import translate
from conquiet.runtime import Consumer, MessageContext, RuntimeMessage
from conquiet.testing import FaultProxy, wait_until, wait_until_async

NOWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "refused": ({"host": "127.0.0.1", "port": 1, "username": "u", "password": "s3cret"}, "at 127.0.0.1:1 (connection"),
    "unknown host": ({"host": "nosuch.invalid"}, "at nosuch.invalid:6379 (the host name is not known"),
    "no socket": ({"unix_socket_path": "/nonexistent/redis.sock"}, "at /nonexistent/redis.sock (there is no such"),
}


def sync_failure(client: redis.Redis) -> QueueError:
    try:
        client.execute_command("XADD", "orders", "*", "data", "{}")  # type: ignore[no-untyped-call]
    except (RedisError, OSError) as error:
        return translate(error, stream="orders", group="", command="emit_now")
    finally:
        client.close()
    raise AssertionError("there is a server")


async def async_failure(client: redis.asyncio.Redis) -> QueueError:
    try:
        await client.execute_command("XADD", "orders", "*", "data", "{}")  # type: ignore[no-untyped-call]
    except (RedisError, OSError) as error:
        return translate(error, stream="orders", group="", command="emit_now")
    finally:
        await client.aclose()
    raise AssertionError("there is a server")


@pytest.mark.parametrize("kind", NOWHERE)
def test_a_connection_never_made_is_not_in_doubt_and_names_the_address(kind: str) -> None:
    settings, said = NOWHERE[kind]
    failures = [
        sync_failure(clone_sync(redis.Redis(**settings))),
        asyncio.run(async_failure(clone_async(redis.Redis(**settings)))),
        asyncio.run(async_failure(clone_async(redis.asyncio.Redis(**settings)))),
    ]

    for error in failures:
        assert not error.in_doubt
        assert "for stream 'orders' was not sent: no connection to the server " + said in str(error)
        assert "emit_now" not in str(error)
        assert "s3cret" not in str(error)


def test_every_door_says_that_nothing_was_sent() -> None:
    """Each goes its own way to the server, and all of them meet in one translation."""
    nowhere = redis.Redis(host="127.0.0.1", port=1)
    doors: list[Callable[[], object]] = [
        lambda: RedisStreamsQueue(nowhere, QueueConfig("orders", "g", "c")),
        lambda: SyncEmitter(nowhere, "orders").emit("order.made", {}),
        lambda: RedisAdmin(nowhere).call("PING"),
        lambda: RedisAdmin(nowhere).pipeline([("PING",), ("PING",)]),
        lambda: RedisAdmin(nowhere).send(b"", 1, command="PING", stream=""),
    ]

    for door in doors:
        with pytest.raises(QueueError, match=r"was not sent: no connection to the server at 127\.0\.0\.1:1") as caught:
            door()
        assert not caught.value.in_doubt


async def test_every_asynchronous_door_says_that_nothing_was_sent_and_where() -> None:
    async def handle(_message: RuntimeMessage, _ctx: MessageContext) -> None:
        """Do nothing."""

    async def paid() -> None:
        """Do nothing."""

    nowhere: Any = redis.asyncio.Redis(host="127.0.0.1", port=1, retry=AsyncRetry(NoBackoff(), 0))
    app = App("orders", redis="redis://127.0.0.1:1/0")
    app.handler("paid")(paid)
    processor = Processor(nowhere, ["orders"])
    processor.handler("paid")(lambda ctx: None)
    doors: dict[str, Callable[[], Any]] = {
        "emit": lambda: processor.emit("paid"),
        "emit_many": lambda: Emitter(nowhere, "orders").emit_many([NewMessage("paid")]),
        "pause": lambda: processor.pause("orders"),
        "run": processor.run,
        "start": lambda: Consumer(streams=["orders"], redis=nowhere, handler=handle).start(),
        "dead letters": lambda: DeadLetters(nowhere, "orders").count(),
        "jobs": lambda: JobAdmin(nowhere, "orders").list("waiting"),
        "app.emit": lambda: app.emit("paid"),
    }
    for name, door in doors.items():
        with pytest.raises(QueueError, match=r"was not sent: no connection to the server at 127\.0\.0\.1:1") as caught:
            await door()
        assert not caught.value.in_doubt, name
    await app.close()
    await processor.close()
    await nowhere.aclose()


def test_a_master_that_no_sentinel_knows_is_named() -> None:
    sentinel: Any = redis.sentinel.Sentinel([("127.0.0.1", 1)])  # type: ignore[no-untyped-call]

    error = sync_failure(clone_sync(sentinel.master_for("orders-master")))

    assert not error.in_doubt
    assert "the master 'orders-master' of its Sentinels" in str(error)


def test_a_pool_that_is_full_sent_nothing_and_says_which_setting(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url, max_connections=1)
    held: Any = client.connection_pool.get_connection()

    error = sync_failure(client)
    held.disconnect()

    assert not error.in_doubt
    assert "max_connections" in str(error)
    assert "was not sent" in str(error)


async def test_an_asyncio_pool_that_is_full_sent_nothing(redis_url: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url, max_connections=1)
    pool: Any = client.connection_pool
    held = await pool.get_connection()

    error = await async_failure(client)
    await held.disconnect()

    assert not error.in_doubt
    assert "max_connections" in str(error)


async def test_our_own_client_serves_more_than_a_hundred_tasks(redis_url: str, key_prefix: str) -> None:
    """All of them wait in the server at the same time: each needs a connection."""
    async with redis.asyncio.Redis.from_url(redis_url) as given, clone_async(given) as clone:
        waiting = [asyncio.ensure_future(clone.blpop([f"{key_prefix}list"], timeout=60)) for _ in range(120)]
        await wait_until_async(lambda: _all_blocked(given, waiting, 120))
        await given.rpush(f"{key_prefix}list", *range(120))

        assert len(await asyncio.gather(*waiting)) == 120


def test_our_own_client_serves_more_than_a_hundred_threads(redis_url: str, key_prefix: str) -> None:
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            clone.blpop([f"{key_prefix}list"], timeout=60)
        except redis.RedisError as error:
            failures.append(error)

    with redis.Redis.from_url(redis_url) as given, clone_sync(given, socket_timeout_s=90.0) as clone:
        threads = [threading.Thread(target=wait) for _ in range(120)]
        for thread in threads:
            thread.start()
        wait_until(lambda: failures or given.info("clients")["blocked_clients"] >= 120)
        given.rpush(f"{key_prefix}list", *range(120))
        for thread in threads:
            thread.join(90)

    assert failures == []


async def _all_blocked(client: redis.asyncio.Redis, waiting: "Sequence[asyncio.Future[Any]]", count: int) -> bool:
    return any(task.done() for task in waiting) or (await client.info("clients"))["blocked_clients"] >= count


def test_a_retried_command_whose_first_reply_was_lost_is_in_doubt(
    redis_url: str, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    """The last attempt got no connection, but the first one added the entry."""
    proxy = fault_proxy(redis_url)
    client = redis.Redis.from_url(proxy.url_for(redis_url), retry=Retry(NoBackoff(), 1))
    client.ping()
    proxy.drop_next_reply(b"XADD")
    connection: Any = client.connection_pool.get_connection()
    connection.host, connection.port = "127.0.0.1", 1  # connected already: where it would connect the next time
    client.connection_pool.release(connection)

    error = sync_failure(client)

    with redis.Redis.from_url(redis_url) as raw:
        assert raw.xlen("orders") == 1
        raw.delete("orders")
    assert error.in_doubt


async def test_many_commands_at_once_do_not_exhaust_a_clone(redis_url: str) -> None:
    """redis-py 8 allows a pool 100 connections by default."""
    given = redis.asyncio.Redis.from_url(redis_url)
    client = clone_async(given)

    async def ping() -> Any:
        pinging: Awaitable[Any] = client.execute_command("PING")  # type: ignore[no-untyped-call]
        return await pinging

    try:
        replies = await asyncio.gather(*(ping() for _ in range(300)))
    finally:
        await client.aclose()
        await given.aclose()

    assert len(replies) == 300


def test_an_asyncio_client_that_retries_connecting_alone_sent_nothing() -> None:
    client = redis.asyncio.Redis(host="127.0.0.1", port=1, retry=AsyncRetry(NoBackoff(), 2))

    assert not asyncio.run(async_failure(client)).in_doubt


def test_a_socket_path_is_shown_and_no_credential(tmp_path: Path) -> None:
    client = redis.Redis(unix_socket_path=str(tmp_path / "r.sock"), password="s3cret")

    error = sync_failure(clone_sync(client))

    assert str(tmp_path / "r.sock") in str(error)
    assert "s3cret" not in str(error)
