"""Connections that break, servers that restart, groups that vanish."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis
import redis.asyncio
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Pending, Run
from tests.redis_clients import RawRedis

from conquiet.core.backoff import Backoff
from conquiet.errors import GroupMissingError, QueueError
from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async
from conquiet.testing.proxy import FaultProxy
from conquiet.testing.redis import RedisServer

QUICK = Backoff(base_s=0.02, cap_s=0.1)


@pytest.fixture
def counts() -> dict[str, int]:
    return {}


Handler = Callable[[RuntimeMessage, MessageContext], Awaitable[None]]


@pytest.fixture
def counting(counts: dict[str, int]) -> Handler:
    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        counts[message.id] = counts.get(message.id, 0) + 1
        await asyncio.sleep(0.001)

    return handler


async def test_killed_connections_are_reported_counted_and_reopened(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    raw: RawRedis,
    counting: Handler,
    counts: dict[str, int],
    pending: Pending,
) -> None:
    running = run(make_engine(counting, concurrency=8, reconnect=QUICK))
    total = 0
    for _ in range(10):
        total += len(enqueue(100))
        await wait_until_async(lambda enough=total - 60: len(counts) > enough)  # type: ignore[misc]
        raw.client_kill_filter(_type="normal", skipme=True)
    await wait_until_async(lambda: len(counts) == total)
    await wait_until_async(lambda: not pending())
    health = running.engine.health()
    await running.stop()

    assert all(isinstance(error, QueueError) for error in running.errors)
    assert len(running.errors) >= 5
    assert health.reconnects >= 5
    assert set(counts.values()) == {1}


async def test_a_read_whose_reply_is_lost_strands_nothing_and_is_not_charged(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    counting: Handler,
    counts: dict[str, int],
) -> None:
    """The entries are pending for this consumer and were never delivered. They must not wait until they are stale."""
    proxy = fault_proxy(redis_url)
    client = redis.asyncio.Redis.from_url(proxy.url_for(redis_url))
    deliveries: set[int] = set()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        deliveries.add(message.delivery_count)
        await counting(message, ctx)

    running = run(make_engine(handler, redis=client, concurrency=8, claim_idle_ms=600_000, reconnect=QUICK))
    await wait_until_async(lambda: running.engine._shards[0].fetcher.is_blocked)
    proxy.drop_next_reply(b"XREADGROUP")
    enqueue(50)
    await wait_until_async(lambda: len(counts) == 50)
    await running.stop()
    await client.aclose()

    assert running.errors
    (counted,) = running.engine.health().streams.values()
    assert (counted.read, counted.claimed) == (50, 0)
    assert deliveries == {1}
    assert set(counts.values()) == {1}


async def test_a_server_that_restarts_is_found_again(
    make_engine: MakeEngine,
    run: Run,
    private_redis: Callable[..., RedisServer],
    counting: Handler,
    counts: dict[str, int],
) -> None:
    server = private_redis(aof=True)
    raw = redis.Redis.from_url(server.url)
    client = redis.asyncio.Redis.from_url(server.url)
    running = run(make_engine(counting, redis=client, streams=["s"], concurrency=8, claim_idle_ms=400, reconnect=QUICK,
                              max_reconnects=200))  # fmt: skip
    for number in range(300):
        raw.xadd("s", {"data": f'{{"n":{number}}}'})
    await wait_until_async(lambda: len(counts) > 50)
    await asyncio.to_thread(server.kill)
    await wait_until_async(lambda: not running.engine.health().ready)
    await asyncio.to_thread(server.restart)
    stored = raw.xlen("s")
    await wait_until_async(lambda: len(counts) >= stored)
    await wait_until_async(lambda: running.engine.health().ready)
    await running.stop()
    raw.close()
    await client.aclose()

    assert stored >= 290  # appendfsync everysec may lose the last second, as documented


async def test_a_server_that_stays_away_ends_the_engine_with_an_error(
    make_engine: MakeEngine, run: Run, private_redis: Callable[..., RedisServer], counting: Handler
) -> None:
    server = private_redis()
    client = redis.asyncio.Redis.from_url(server.url)
    running = run(make_engine(counting, redis=client, streams=["s"], reconnect=QUICK, max_reconnects=5))
    await wait_until_async(lambda: running.engine.health().ready)
    await asyncio.to_thread(server.kill)

    with pytest.raises(QueueError):
        await asyncio.wait_for(running.task, 60)

    assert 5 <= running.engine.health().reconnects <= 10
    assert len(running.errors) == len({id(error) for error in running.errors})
    await client.aclose()


async def test_a_lost_group_stops_the_engine_with_a_clear_error(
    make_engine: MakeEngine,
    run: Run,
    raw: RawRedis,
    enqueue: Enqueue,
    counting: Handler,
    counts: dict[str, int],
    stream: str,
) -> None:
    running = run(make_engine(counting))
    enqueue(20)
    await wait_until_async(lambda: len(counts) == 20)
    raw.flushall()

    with pytest.raises(GroupMissingError) as caught:
        await asyncio.wait_for(running.task, 60)

    assert stream in str(caught.value)
    assert len(running.errors) == 1


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("blocked", [True, False])
async def test_of_many_streams_none_is_said_to_be_gone_that_is_not(
    make_engine: MakeEngine,
    run: Run,
    raw: RawRedis,
    counting: Handler,
    key_prefix: str,
    place: int,
    *,
    blocked: bool,
) -> None:
    here, gone = (f"{key_prefix}{name}" for name in ("here", "gone"))
    streams = [here]
    streams.insert(place, gone)
    engine = make_engine(counting, streams=streams)
    running = run(engine)
    await wait_until_async(lambda: engine._shards[0].fetcher.is_blocked)
    if blocked:  # the server does not report on which of them the read was waiting
        raw.delete(gone)
    else:
        pipe = raw.pipeline()
        pipe.xadd(here, {"data": "{}"})
        pipe.delete(gone)
        pipe.execute()

    with pytest.raises(GroupMissingError) as caught:
        await asyncio.wait_for(running.task, 60)

    assert caught.value.stream in {gone, *(f"{one}, {other}" for one, other in ((here, gone), (gone, here)))}


async def test_a_replica_is_called_so_at_the_start(
    make_engine: MakeEngine, private_redis: Callable[..., RedisServer], counting: Handler
) -> None:
    server = private_redis()
    server.call("REPLICAOF", "127.0.0.1", "1")
    async with redis.asyncio.Redis.from_url(server.url) as client:
        with pytest.raises(QueueError, match=r"refused by the server \(READONLY\)"):
            await make_engine(counting, redis=client).start()


async def test_a_lost_group_is_built_again_from_the_beginning_on_request(
    make_engine: MakeEngine, run: Run, raw: RawRedis, enqueue: Enqueue, counting: Handler, counts: dict[str, int]
) -> None:
    running = run(make_engine(counting, recreate_group=True))
    enqueue(20)
    await wait_until_async(lambda: len(counts) == 20)
    raw.flushall()
    enqueue(30)
    await wait_until_async(lambda: len(counts) == 50)
    await running.stop()

    assert {type(error) for error in running.errors} == {GroupMissingError}
    assert len(running.errors) <= 5


@pytest.mark.spec("CM-001.14")
async def test_an_acknowledgement_that_could_not_be_sent_is_reported_and_sent_again(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    pending: Pending,
) -> None:
    proxy = fault_proxy(redis_url)
    client = redis.asyncio.Redis.from_url(proxy.url_for(redis_url))
    runs = 0

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        nonlocal runs
        runs += 1

    running = run(make_engine(handler, redis=client, claim_idle_ms=600_000, reconnect=QUICK, concurrency=3))
    await wait_until_async(lambda: running.engine._shards[0].fetcher.is_blocked)
    proxy.drop_next_request(b"XACK")
    enqueue(1)
    await wait_until_async(lambda: running.errors)
    await wait_until_async(lambda: not pending())
    await running.stop()
    await client.aclose()

    assert runs == 1


@pytest.mark.spec("CM-001.14")
async def test_an_acknowledgement_lost_while_a_read_waits_is_an_error_event(
    make_engine: MakeEngine,
    run: Run,
    enqueue: Enqueue,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    pending: Pending,
) -> None:
    """Then it has a separate connection: the reader's connection, which reports its faults too, is not affected."""
    proxy = fault_proxy(redis_url)
    client = redis.asyncio.Redis.from_url(proxy.url_for(redis_url))

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await wait_until_async(lambda: fetcher.is_blocked)
        proxy.drop_next_request(b"XACK")

    engine = make_engine(handler, redis=client, claim_idle_ms=600_000, reconnect=QUICK, concurrency=3)
    fetcher = engine._shards[0].fetcher
    enqueue(1)
    running = run(engine)
    await wait_until_async(lambda: proxy.counters.faults)
    await wait_until_async(lambda: not pending())
    await running.stop()
    await client.aclose()

    (error,) = running.errors
    assert isinstance(error, QueueError)
    assert error.command == "XACK"


async def test_missing_rights_are_an_error_at_the_start(
    make_engine: MakeEngine, private_redis: Callable[..., RedisServer], counting: Handler, counts: dict[str, int]
) -> None:
    """Otherwise the first heartbeat or acknowledgement would find out, with the messages already running, or done."""
    server = private_redis()
    raw = redis.Redis.from_url(server.url)
    raw.xadd("s", {"data": "{}"})
    client = redis.asyncio.Redis.from_url(server.url, username="worker", password="-")

    for command in ("eval", "xack", "xautoclaim", "xclaim", "xpending", "xreadgroup"):
        raw.acl_setuser("worker", enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{command}"])
        with pytest.raises(QueueError, match=f"allow the server's user .*{command.upper()}") as caught:
            await asyncio.wait_for(make_engine(counting, redis=client, streams=["s"]).start(), 60)
        assert caught.value.command == "EVAL"
        assert counts == {}
        assert raw.xpending("s", "processor")["pending"] == 0
    await client.aclose()
    raw.close()
