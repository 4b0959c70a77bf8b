"""The order by key while the keys of its slot lie on two nodes: nothing is done by halves, and no message is stuck."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from conquiet.core.backoff import Backoff
from conquiet.processor import JobContext, KeyOrder, Processor, ProcessorSettings
from conquiet.processor.keys import keys_of
from conquiet.redis_transport.client import clone_async
from conquiet.runtime import RuntimeSettings
from conquiet.testing import RedisClusterServer, wait_until_async

STREAM = "orders"
KEYS = keys_of(STREAM)
LINE = KEYS.waiting("account-7")


@pytest.fixture
async def client(redis_cluster: RedisClusterServer) -> AsyncIterator[redis.asyncio.RedisCluster]:
    made = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)
    yield made
    await made.aclose()


def a_processor(client: redis.asyncio.RedisCluster) -> tuple[Processor, asyncio.Event, list[int]]:
    """Return a processor, what lets its handler end, and the numbers of the messages that it has handled."""
    settings = ProcessorSettings(retention=None, settle_backoff=Backoff(base_s=0.02, cap_s=0.2))
    runtime = RuntimeSettings(reconnect=Backoff(base_s=0.02, cap_s=0.2), max_reconnects=1_000)
    processor = Processor(client, [STREAM], concurrency=2, settings=settings, runtime=runtime)
    may_end, done = asyncio.Event(), list[int]()

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        await may_end.wait()
        done.append(ctx.data["n"])

    return processor, may_end, done


async def divided(cluster: RedisClusterServer, moved: list[str]) -> Iterator[str]:
    """Move these keys of the slot to another node; return the steps that move the others."""
    steps = cluster.moving_slot(STREAM, first=moved)
    for _ in ("opened", *moved):
        await asyncio.to_thread(next, steps)
    return steps


@pytest.mark.parametrize(
    "moved",
    [[LINE], [LINE, KEYS.waiting_keys], [STREAM, KEYS.order], [STREAM, KEYS.order, KEYS.waiting_keys]],
    ids=["line", "line and lengths", "stream and turns", "all but the line"],
)
async def test_a_turn_ends_when_its_keys_are_on_one_node(
    redis_cluster: RedisClusterServer,
    client: redis.asyncio.RedisCluster,
    moved: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    processor, may_end, done = a_processor(client)

    async with processor:
        for number in range(3):
            await processor.emit("pay", {"n": number}, key="account-7")
        steps = await divided(redis_cluster, moved)
        may_end.set()
        await wait_until_async(lambda: done == [0])
        await asyncio.sleep(0.5)  # the acknowledgement is sent meanwhile, again and again
        while_divided = list(done)
        await asyncio.to_thread(list, steps)
        await wait_until_async(lambda: len(done) == 3)
        await wait_until_async(lambda: _nothing_is_pending(client))
        async with clone_async(client) as own:
            report = await KeyOrder(own, STREAM).report()

    assert (while_divided, done) == ([0], [0, 1, 2])
    assert (report.holders, report.waiting) == (0, 0)
    assert "is gone" not in caplog.text  # a read that waits for a stream that moves ends as if it had been deleted


async def test_an_emitted_message_waits_until_its_keys_are_on_one_node(
    redis_cluster: RedisClusterServer, client: redis.asyncio.RedisCluster
) -> None:
    processor, may_end, done = a_processor(client)

    async with processor:
        for number in range(2):
            await processor.emit("pay", {"n": number}, key="account-7")
        await processor.emit("pay", {"n": 9}, delay_s=600)
        steps = await divided(redis_cluster, [STREAM, KEYS.delayed, KEYS.wake, KEYS.order])
        emitting = asyncio.create_task(processor.emit("pay", {"n": 2}, key="account-7"))
        ended, _ = await asyncio.wait({emitting}, timeout=0.5)
        await asyncio.to_thread(list, steps)
        emitted = await emitting
        may_end.set()
        await wait_until_async(lambda: len(done) == 3)

    assert (ended, emitted.ahead, done) == (set(), 2, [0, 1, 2])


async def _nothing_is_pending(client: redis.asyncio.RedisCluster) -> bool:
    return bool((await client.xpending(STREAM, "processor"))["pending"] == 0)
