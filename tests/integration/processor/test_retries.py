"""Retries: another attempt is scheduled and the old entry acknowledged in one step, once, with any fault."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.core.backoff import Backoff
from conquiet.core.json_codec import encode_payload
from conquiet.errors import QueueError
from conquiet.processor import DeadFilter, JobContext, Pauses, Processor, Reject, Retry, RetryPolicy
from conquiet.processor.envelope import Envelope, to_payload
from conquiet.processor.keys import Keys
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.scripts import script
from conquiet.processor.settings import ProcessorSettings
from conquiet.processor.settler import ProcessorSettler, Step
from conquiet.redis_transport.client import AsyncClient, clone_async
from conquiet.testing import FaultProxy, wait_until_async
from conquiet.testing.redis import RedisServer

SOON = RetryPolicy.fixed(0.01, max_attempts=3)


def a_settler(client: AsyncClient, consumer_id: str, settings: ProcessorSettings) -> ProcessorSettler:
    return ProcessorSettler(
        ProcessorParts(
            client=client,
            group="processor",
            consumer_id=consumer_id,
            keys={},
            settings=settings,
            jobs=None,
            pauses=Pauses(client),
        )
    )


@pytest.mark.spec("CM-006.3", "CM-002.6")
async def test_a_retry_is_a_new_entry_and_the_failed_one_is_acknowledged(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()
    runs: list[tuple[str, int, str]] = []

    @processor.handler("pay", retry=SOON)
    async def pay(ctx: JobContext) -> None:
        runs.append((ctx.id, ctx.attempt, ctx.delivery.id))
        if ctx.attempt < 3:
            raise ConnectionError

    async with processor:
        await processor.emit("pay", {"n": 1}, id="m1")
        await wait_until_async(lambda: len(runs) == 3)
        await wait_until_async(lambda: _is(place.pending, 0))

    assert [run[:2] for run in runs] == [("m1", 1), ("m1", 2), ("m1", 3)]
    assert len({entry for _, _, entry in runs}) == 3
    assert await place.attempts() == [("m1", 1), ("m1", 2), ("m1", 3)]
    assert await place.dead() == await place.waiting() == 0


async def test_many_failures_at_once_are_settled_in_few_round_trips(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor(concurrency=100)
    all_here = asyncio.Barrier(100)
    failed = 0

    @processor.handler("pay", retry=RetryPolicy.fixed(60, max_attempts=2))
    async def pay(ctx: JobContext) -> None:
        nonlocal failed
        await all_here.wait()
        failed += 1
        raise ConnectionError

    before = await place.calls("evalsha")
    async with processor:
        for number in range(100):
            await processor.emit("pay", id=f"m{number}")
        await wait_until_async(lambda: _is(place.waiting, 100))
    used = await place.calls("evalsha") - before

    # A hundred emits, the promoter's polls, and far fewer than a hundred settlements.
    assert used < 100 + 40
    assert failed == 100


@pytest.mark.parametrize(
    ("error", "policy", "runs"),
    [
        (ValueError(), RetryPolicy(3, SOON.backoff, no_retry_for=(ValueError,)), 1),
        (KeyError(), RetryPolicy(3, SOON.backoff, retry_for=(ConnectionError,)), 1),
        (ConnectionResetError(), RetryPolicy(3, SOON.backoff, retry_for=(ConnectionError,)), 3),
        (Reject("closed account"), SOON, 1),
        (Retry(after_s=0), RetryPolicy(2, SOON.backoff, retry_for=()), 2),
        (ValueError(), RetryPolicy(), 1),
    ],
)
async def test_policy_decides_how_often(
    make_processor: Callable[..., Processor], place: Place, error: Exception, policy: RetryPolicy, runs: int
) -> None:
    processor = make_processor()

    @processor.handler("pay", retry=policy)
    async def pay(ctx: JobContext) -> None:
        raise error

    async with processor:
        await processor.emit("pay", id="m")
        await wait_until_async(lambda: _is(place.dead, 1))

    assert await place.attempts() == [("m", number) for number in range(1, runs + 1)]


async def test_the_message_may_bring_its_own_number_of_attempts(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()
    last: list[bool] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(0, max_attempts=9))
    async def pay(ctx: JobContext) -> None:
        last.append(ctx.is_last_attempt)
        raise ConnectionError

    async with processor:
        await processor.emit("pay", id="m", max_attempts=2)
        await wait_until_async(lambda: _is(place.dead, 1))

    assert last == [False, True]


async def test_an_entry_that_is_in_other_hands_is_neither_scheduled_nor_acknowledged(
    client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    """A host that was suspended for a minute returns with the result of a message that another host owns now."""
    payload = encode_payload(to_payload(Envelope("pay", "m")), max_bytes=1000)
    await client.xgroup_create(keys.stream, "processor", "0", mkstream=True)
    entry = (await client.xadd(keys.stream, {"data": payload})).decode()
    await client.xreadgroup("processor", "slow", {keys.stream: ">"})
    await client.xclaim(keys.stream, "processor", "quick", 0, [entry])
    own = clone_async(client)
    slow = a_settler(own, "slow", ProcessorSettings())

    assert await slow.reschedule(keys, entry, "+1000", payload) is Step.LEFT
    assert await slow.dead_letter(keys, entry, b"{}") is Step.LEFT

    assert await place.pending() == 1
    assert await place.waiting() == await place.dead() == 0
    assert REGISTRY.get_sample_value("conquiet_processor_ownership_lost_total", {"stream": keys.stream}) == 2
    quick = a_settler(own, "quick", ProcessorSettings())
    assert await quick.reschedule(keys, entry, "+1000", payload) is Step.MOVED
    assert (await place.pending(), await place.waiting()) == (0, 1)
    await own.aclose()


async def test_promoters_are_woken_when_what_waits_first_is_another_and_only_then(
    client: RawAsyncRedis, keys: Keys
) -> None:
    await client.xgroup_create(keys.stream, "processor", "0", mkstream=True)
    ids = [(await client.xadd(keys.stream, {"data": "{}"})).decode() for _ in range(4)]
    await client.xreadgroup("processor", "me", {keys.stream: ">"})
    own = clone_async(client)
    settler = a_settler(own, "me", ProcessorSettings())

    async def wake_up(*waits: str) -> list[Any]:
        """Settle this many concurrently; return the last wake-up."""
        await asyncio.gather(*[settler.reschedule(keys, ids.pop(), wait, wait.encode()) for wait in waits])
        return [entry_id for entry_id, _ in await client.xrange(keys.wake)]

    first = await wake_up("+60000", "+30000")
    assert len(first) == 1
    assert await wake_up("+90000") == first
    assert await wake_up("+10000") != first
    await own.aclose()


async def test_a_server_that_stays_away_is_an_error_for_each_waiter(client: RawAsyncRedis, keys: Keys) -> None:
    settings = ProcessorSettings(settle_attempts=3, settle_backoff=Backoff(base_s=0.01, cap_s=0.01))
    nowhere = clone_async(client.__class__(port=1))
    settler = a_settler(nowhere, "me", settings)

    async with asyncio.timeout(60):
        failures = await asyncio.gather(
            settler.reschedule(keys, "1-0", "+1000", b"{}"),
            settler.dead_letter(keys, "2-0", b"{}"),
            return_exceptions=True,
        )

    assert [type(failure) for failure in failures] == [QueueError, QueueError]
    assert REGISTRY.get_sample_value("conquiet_processor_settle_repeats_total", {"stream": keys.stream}) == 2 * 2
    await nowhere.aclose()


async def test_a_step_repeated_after_a_lost_reply_happens_once(
    redis_url: str, fault_proxy: Callable[[str], FaultProxy], client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    payload = encode_payload(to_payload(Envelope("pay", "m")), max_bytes=1000)
    await client.xgroup_create(keys.stream, "processor", "0", mkstream=True)
    ids = [(await client.xadd(keys.stream, {"data": payload})).decode() for _ in range(2)]
    await client.xreadgroup("processor", "me", {keys.stream: ">"})
    proxy = fault_proxy(redis_url)
    through = client.__class__.from_url(proxy.url_for(redis_url))
    own = clone_async(through)
    settler = a_settler(own, "me", ProcessorSettings())
    for name in ("reschedule", "dead_letter"):
        await client.script_load(script(name).source)
    await own.ping()

    for entry, step in zip(ids, ("reschedule", "dead_letter"), strict=True):
        proxy.drop_next_reply()
        if step == "dead_letter":
            answered = await settler.dead_letter(keys, entry, b'{"reason":"x","id":"m","entry_id":"1-1","group":"g"}')
        else:
            answered = await settler.reschedule(keys, entry, "+60000", payload)
        # The first sending did it; the second found nothing left to do.
        assert answered is Step.LEFT

    assert await place.waiting() == 1
    assert await place.dead() == 1
    assert await place.pending() == 0
    await own.aclose()
    await through.aclose()


async def test_a_retry_survives_a_restart_of_the_server(
    private_redis: Callable[..., RedisServer], make_processor: Callable[..., Processor], keys: Keys
) -> None:
    server = private_redis(aof=True)
    processor = make_processor(url=server.url, settle_attempts=50)
    runs: list[int] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(0.01, max_attempts=3))
    async def pay(ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.to_thread(server.restart)
            raise ConnectionError

    async with processor:
        await processor.emit("pay", id="m")
        await wait_until_async(lambda: len(runs) >= 2)
        # The server lost its scripts, and they are sent again.
        await wait_until_async(lambda: not _pending(server, keys.stream))
        assert await processor.dead_letters().count() == 0
        assert (await processor.dead_letters().replay(DeadFilter())).matched == 0

    assert runs == [1, 2]


async def test_out_of_memory_loses_nothing(
    private_redis: Callable[..., RedisServer], make_processor: Callable[..., Processor], keys: Keys
) -> None:
    """The step is refused as a whole: the entry stays pending instead of being acknowledged into nothing."""
    server = private_redis()
    processor = make_processor(url=server.url)
    failed = asyncio.Event()

    @processor.handler("pay", retry=SOON)
    async def pay(ctx: JobContext) -> None:
        server.call("CONFIG", "SET", "maxmemory", "1")
        failed.set()
        raise ConnectionError

    events: list[Any] = []
    processor.on("failed", events.append)
    async with processor:
        await processor.emit("pay", id="m")
        await failed.wait()
        await wait_until_async(lambda: events)
        pending = _pending(server, keys.stream)
        server.call("CONFIG", "SET", "maxmemory", "0")

    assert pending == 1
    assert server.call("ZCARD", keys.delayed) == 0


async def _is(question: Callable[[], Any], answer: int) -> bool:
    return bool(await question() == answer)


def _pending(server: RedisServer, stream: str) -> int:
    reply: Any = server.call("XPENDING", stream, "processor")
    return int(reply[0])
