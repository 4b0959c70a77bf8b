"""Order and fairness by key, on a real server."""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis.asyncio
from tests.redis_clients import RawAsyncRedis

from conquiet.errors import ConfigurationError
from conquiet.processor import (
    DeadFilter,
    JobContext,
    KeyOrder,
    KeyQueue,
    NewMessage,
    Processor,
    Reject,
    RetryPolicy,
    SyncEmitter,
)
from conquiet.processor.keys import Keys
from conquiet.runtime.settings import RuntimeSettings
from conquiet.testing import wait_until_async

MakeProcessor = Callable[..., Processor]
Place = Any
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
QUICK = RetryPolicy.fixed(0.05, max_attempts=3)


@asynccontextmanager
async def running(*processors: Processor) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(processor.run()) for processor in processors]
    try:
        yield
    finally:
        for processor in processors:
            processor.stop()
        await asyncio.gather(*tasks)


async def is_clean(client: RawAsyncRedis, keys: Keys) -> bool:
    """True if no key has a holder and none has messages waiting."""
    holders = {field for field in await client.hkeys(keys.order) if field not in {b"", b"\x01", b"\x02"}}
    lists = [name async for name in client.scan_iter(match=f"{keys.order}:*".replace("{", "[{]"), count=1000)]
    return not holders and not lists


async def equals(ask: Callable[[str], Any], name: str, expected: int) -> bool:
    return bool(await ask(name) == expected)


class Seen:
    """The runs of handlers, in order, and whether two of one key ran concurrently."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int]] = []
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.active: set[str] = set()
        self.most_active = 0
        self.overlaps = 0

    @asynccontextmanager
    async def run(self, ctx: JobContext) -> AsyncIterator[None]:
        assert ctx.key is not None
        self.overlaps += ctx.key in self.active
        self.active.add(ctx.key)
        self.most_active = max(self.most_active, len(self.active))
        self.order.append((ctx.key, ctx.data["n"]))
        self.by_key[ctx.key].append(ctx.data["n"])
        try:
            await asyncio.sleep(0.001)
            yield
        finally:
            self.active.discard(ctx.key)


def messages(key: str, count: int, **options: Any) -> list[NewMessage]:
    return [NewMessage("pay", {"n": n}, key=key, **options) for n in range(1, count + 1)]


async def test_messages_of_a_key_run_in_order_and_one_at_a_time(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    seen = Seen()
    hosts = [make_processor(concurrency=8, consumer_id=f"host-{number}") for number in range(3)]
    for host in hosts:

        @host.handler("pay")
        async def pay(ctx: JobContext) -> None:
            async with seen.run(ctx):
                pass

    mixed = [message for row in zip(*[messages(f"account-{k}", 30) for k in range(10)], strict=True) for message in row]
    await hosts[0].emit_many(mixed)
    async with running(*hosts):
        await wait_until_async(lambda: len(seen.order) == 300)

    assert all(numbers == list(range(1, 31)) for numbers in seen.by_key.values())
    assert seen.overlaps == 0
    assert seen.most_active > 3  # keys run side by side
    assert await place.pending() == 0
    assert await is_clean(client, keys)


@pytest.mark.parametrize("key", ['say "hi"', "back\\slash\\", "ключ-7", "a:b{c}", "*"])
async def test_any_text_can_be_a_key(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys, key: str
) -> None:
    seen = Seen()
    host = make_processor()

    @host.handler("pay", retry=QUICK)
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            if ctx.data["n"] == 1 and ctx.attempt == 1:
                raise ValueError

    await host.emit_many(messages(key, 3))
    async with running(host):
        await wait_until_async(lambda: len(seen.order) == 4)

    assert seen.by_key[key] == [1, 1, 2, 3]
    assert await is_clean(client, keys)


async def test_a_failing_message_keeps_its_key_until_its_last_attempt(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    seen = Seen()
    host = make_processor()

    @host.handler("pay", retry=QUICK)
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            if ctx.data["n"] == 1:
                raise ValueError

    await host.emit_many([*messages("a", 3), *messages("b", 1)])
    async with running(host):
        await wait_until_async(lambda: len(seen.by_key["a"]) == 5 and len(seen.by_key["b"]) == 3)

    assert seen.by_key["a"] == [1, 1, 1, 2, 3]
    assert await place.dead() == 2
    assert await is_clean(client, keys)


async def test_a_message_that_yields_turn_lets_its_key_go_on(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys
) -> None:
    seen = Seen()
    host = make_processor()

    @host.handler("pay", retry=RetryPolicy(max_attempts=2, backoff=QUICK.backoff, yields_turn=True))
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            if ctx.data["n"] == 1 and ctx.attempt == 1:
                raise ValueError

    await host.emit_many(messages("a", 3))
    async with running(host):
        await wait_until_async(lambda: len(seen.order) == 4)

    assert seen.by_key["a"] == [1, 2, 3, 1]
    assert seen.overlaps == 0
    assert await is_clean(client, keys)


async def test_a_tenant_with_a_long_line_delays_another_by_one_job(
    make_processor: MakeProcessor,
) -> None:
    """Counted, not timed: the single job starts second at the latest after it was emitted."""
    seen = Seen()
    host = make_processor(concurrency=1)
    emitted_at: list[int] = []

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            if ctx.key == "large" and ctx.data["n"] == 5:
                await host.emit("pay", {"n": 1}, key="small")
                emitted_at.append(len(seen.order))

    await host.emit_many(messages("large", 100_000 if TORTURE else 10_000))
    async with running(host):
        await wait_until_async(lambda: "small" in seen.by_key)

    assert seen.order.index(("small", 1)) - emitted_at[0] <= 1


async def test_a_dead_holders_message_is_claimed_and_its_key_continues(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys
) -> None:
    seen = Seen()
    host = make_processor(runtime=RuntimeSettings(claim_idle_ms=200))

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            pass

    await host.emit_many(messages("a", 3))
    await client.xgroup_create(keys.stream, "processor", "0")
    await client.xreadgroup("processor", "dead", {keys.stream: ">"})  # read, and never settled
    async with running(host):
        await wait_until_async(lambda: len(seen.order) == 3)

    assert seen.by_key["a"] == [1, 2, 3]
    assert await is_clean(client, keys)


async def test_a_holder_that_lost_its_lease_does_not_release_its_key(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    """Its message runs elsewhere: the next one may start only when that run has ended."""
    host = make_processor(concurrency=1, consumer_id="slow")
    entered, claimed = asyncio.Event(), asyncio.Event()

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        entered.set()
        await claimed.wait()
        await ctx.ack()

    await host.emit_many(messages("a", 2))
    async with running(host):
        await entered.wait()
        entries: Any = await client.xrange(keys.stream)
        await client.xclaim(keys.stream, "processor", "other", 0, [entries[0][0]])
        claimed.set()
        await wait_until_async(lambda: host.health().in_flight == 0)

    assert await place.pending() == 1  # the other consumer's
    assert await client.llen(keys.waiting("a")) == 1
    assert await client.xlen(keys.stream) == 1


async def test_an_old_message_that_comes_again_ends_no_other_turn(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    """A group that was set back, by hand or by a fail-over, is given what it has done once more."""
    host = make_processor(concurrency=2)
    begun: list[int] = []
    may_end = asyncio.Event()

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        begun.append(ctx.data["n"])
        if ctx.data["n"] == 2:
            await may_end.wait()

    await host.emit_many(messages("a", 3))
    async with running(host):
        await wait_until_async(lambda: begun == [1, 2])
        await client.xgroup_setid(keys.stream, "processor", "0")
        await wait_until_async(lambda: len(begun) == 3 and host.health().in_flight == 1)
        assert await client.llen(keys.waiting("a")) == 1
        may_end.set()
        await wait_until_async(lambda: len(begun) == 4)

    assert begun == [1, 2, 1, 3]
    assert await place.pending() == 0
    assert await is_clean(client, keys)


async def test_a_late_settlement_does_not_end_the_turn_of_the_next(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    """Its entry was deleted, and an operator has released its key: its ticket is not the holder's any more."""
    host = make_processor(concurrency=1)
    entered, released, second, finish = (asyncio.Event() for _ in range(4))

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        if ctx.data["n"] == 1:
            entered.set()
            await released.wait()
        elif ctx.data["n"] == 2:
            second.set()
            await finish.wait()

    async def one_is_pending() -> bool:
        return bool(await place.pending() == 1)

    await host.emit_many(messages("a", 3))
    async with running(host):
        await entered.wait()
        entries: Any = await client.xrange(keys.stream)
        await client.xdel(keys.stream, entries[0][0])
        assert await KeyOrder(client, keys.stream).release_stuck() == ["a"]
        released.set()
        await second.wait()
        await wait_until_async(one_is_pending)  # the first is settled
        waiting = await client.llen(keys.waiting("a"))
        finish.set()
        await wait_until_async(partial(is_clean, client, keys))

    assert waiting == 1


async def test_an_early_acknowledgement_lets_the_next_one_start(make_processor: MakeProcessor) -> None:
    host = make_processor(concurrency=2)
    second = asyncio.Event()

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        if ctx.data["n"] == 2:
            second.set()
            return
        await ctx.ack()
        await asyncio.wait_for(second.wait(), 20)

    await host.emit_many(messages("a", 2))
    async with running(host):
        await asyncio.wait_for(second.wait(), 20)


async def test_delayed_messages_join_their_key_when_they_are_due(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys
) -> None:
    seen = Seen()
    host = make_processor()
    due = asyncio.Event()

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            if ctx.data["n"] == 1:
                await due.wait()

    await host.emit("pay", {"n": 4}, key="a", delay_s=0.2, id="late")
    await host.emit_many(messages("a", 2))
    async with running(host):
        await wait_until_async(lambda: len(seen.order) == 1)
        await wait_until_async(partial(equals, client.zcard, keys.delayed, 0))
        assert (await host.emit("pay", {"n": 5}, key="a")).ahead == 3
        due.set()
        await wait_until_async(lambda: len(seen.order) == 4)

    assert seen.by_key["a"] == [1, 2, 4, 5]
    assert seen.overlaps == 0
    assert await is_clean(client, keys)


async def test_a_replayed_dead_letter_joins_the_end_of_its_key(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    seen = Seen()
    host = make_processor()
    hold = asyncio.Event()

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            if ctx.data["n"] == 1 and not hold.is_set():
                raise Reject("no")
            if ctx.data["n"] == 2:
                await hold.wait()

    await host.emit_many(messages("a", 3))
    async with running(host):
        await wait_until_async(lambda: len(seen.order) == 2)
        report = await host.dead_letters().replay(DeadFilter())
        hold.set()
        await wait_until_async(lambda: len(seen.order) == 4)

    assert report.replayed == 1
    assert seen.by_key["a"] == [1, 2, 3, 1]
    assert seen.overlaps == 0
    assert await is_clean(client, keys)


async def test_a_paused_event_holds_its_key_and_continues_afterwards(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys
) -> None:
    seen = Seen()
    host = make_processor(refresh_s=0.1)

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            pass

    await host.pause(event="pay")
    await host.emit_many(messages("a", 3))
    async with running(host):
        await wait_until_async(partial(equals, client.llen, keys.parked_event("pay"), 1))
        assert await client.llen(keys.waiting("a")) == 2
        await host.resume(event="pay")
        await wait_until_async(lambda: len(seen.order) == 3)

    assert seen.by_key["a"] == [1, 2, 3]
    assert await is_clean(client, keys)


async def test_an_id_given_twice_waits_once_in_its_key(
    make_processor: MakeProcessor, stream: str, redis_url: str
) -> None:
    host = make_processor()
    with SyncEmitter(redis.Redis.from_url(redis_url), stream) as emitter:
        first = emitter.emit("pay", {"n": 1}, key="a", id="one")
        again = emitter.emit("pay", {"n": 1}, key="a", id="one")
        second = emitter.emit("pay", {"n": 2}, key="a", id="two")

    assert (first.ahead, first.duplicate) == (0, False)
    assert first.entry_id
    assert again.duplicate
    assert (second.entry_id, second.ahead) == (None, 1)
    with pytest.raises(ConfigurationError, match="key must"):
        await host.emit("pay", key="")


async def test_a_keyed_entry_of_another_program_joins_its_line(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys
) -> None:
    seen = Seen()
    host = make_processor()

    @host.handler("pay")
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            pass

    await host.emit_many(messages("a", 2))
    await client.xadd(keys.stream, {"data": '{"event": "pay", "data": {"n": 3}, "key": "a", "v": 1}'})
    async with running(host):
        await wait_until_async(lambda: len(seen.order) == 3)

    assert seen.by_key["a"] == [1, 2, 3]
    assert seen.overlaps == 0
    assert await is_clean(client, keys)


async def test_a_key_costs_at_most_one_more_round_trip(make_processor: MakeProcessor, client: RawAsyncRedis) -> None:
    """Requests that the server has read, for the same number of messages with different keys and without keys."""

    async def requests(*, keyed: bool) -> int:
        done: list[int] = []
        host = make_processor(
            concurrency=1, consumer_id=f"c-{keyed}", refresh_s=60, runtime=RuntimeSettings(prefetch=0)
        )

        @host.handler("pay")
        async def pay(ctx: JobContext) -> None:
            done.append(ctx.data["n"])

        await host.emit_many([NewMessage("pay", {"n": n}, key=f"k{n}" if keyed else None) for n in range(300)])
        before = int((await client.info("stats"))["total_reads_processed"])
        async with running(host):
            await wait_until_async(lambda: len(done) == 300)
        return int((await client.info("stats"))["total_reads_processed"]) - before

    unkeyed, keyed = await requests(keyed=False), await requests(keyed=True)

    assert keyed <= unkeyed + 300


async def test_a_key_whose_entry_was_deleted_is_found_and_released(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys
) -> None:
    seen = Seen()
    host = make_processor()

    @host.handler("pay", retry=RetryPolicy.fixed(3_600, max_attempts=2))
    async def pay(ctx: JobContext) -> None:
        async with seen.run(ctx):
            if ctx.key == "retrying":
                raise ValueError

    for key in ("deleted", 'del"eted', "retrying", "waiting"):
        await host.emit_many(messages(key, 2))
    order = KeyOrder(client, keys.stream)
    entries: Any = await client.xrange(keys.stream)
    await client.xdel(keys.stream, entries[0][0], entries[1][0])
    assert sorted(await order.stuck()) == ['del"eted', "deleted"]
    async with running(host):
        await wait_until_async(lambda: len(seen.by_key["waiting"]) == 2 and len(seen.by_key["retrying"]) == 1)
        await wait_until_async(partial(equals, client.zcard, keys.delayed, 1))

        assert sorted(await order.release_stuck()) == ['del"eted', "deleted"]
        await wait_until_async(lambda: len(seen.order) == 5)

    assert seen.by_key["deleted"] == [2]
    assert await order.stuck() == []
    report = await order.report()
    assert (report.holders, report.waiting, report.group) == (1, 1, "processor")
    assert report.longest == (KeyQueue("retrying", 1),)


async def test_a_second_group_gets_every_message_and_leaves_the_order_alone(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    seen, other = Seen(), Seen()
    first = make_processor(refresh_s=0.1)
    second = make_processor(group="audit", refresh_s=0.1, consumer_id="auditor")
    for host, sees in ((first, seen), (second, other)):

        @host.handler("pay")
        async def pay(ctx: Any, sees: Seen = sees) -> None:
            async with sees.run(ctx):
                pass

    async with running(first):
        await first.emit_many(messages("a", 5))
        await wait_until_async(lambda: len(seen.order) == 5)
        async with running(second):
            await first.emit_many(messages("b", 20))
            await wait_until_async(lambda: len(seen.order) == 25 and len(other.order) == 25)

    assert seen.by_key["b"] == list(range(1, 21))
    assert seen.overlaps == 0
    assert "belongs to group processor" in caplog.text
    assert await is_clean(client, keys)


async def test_a_batch_has_one_message_of_a_key_at_most(
    make_processor: MakeProcessor, client: RawAsyncRedis, keys: Keys
) -> None:
    host = make_processor()
    batches: list[list[tuple[str, int]]] = []

    @host.handler("pay", batch=10, within_s=0.01)
    async def pay(members: Any) -> None:
        batches.append([(member.key, member.data["n"]) for member in members])

    rows = zip(*[messages(f"account-{k}", 5) for k in range(8)], strict=True)
    await host.emit_many([message for row in rows for message in row])
    async with running(host):
        await wait_until_async(lambda: sum(map(len, batches)) == 40)

    assert all(len({key for key, _ in batch}) == len(batch) for batch in batches)
    for k in range(8):
        assert [n for batch in batches for key, n in batch if key == f"account-{k}"] == [1, 2, 3, 4, 5]
    assert await is_clean(client, keys)
