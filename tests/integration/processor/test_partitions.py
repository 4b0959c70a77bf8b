"""One stream over many partitions, on a real server: order by key, growth, and the view of operators."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio
from tests.redis_clients import RawAsyncRedis

from conquiet.core.lifecycle import Status
from conquiet.errors import ConfigurationError
from conquiet.processor import (
    DeadFilter,
    Emitter,
    JobContext,
    Layout,
    NewMessage,
    PartitionedEmitter,
    PartitionedProcessor,
    PartitionedStream,
    ProcessorSettings,
    Reject,
)
from conquiet.processor.keys import keys_of
from conquiet.processor.partitions import partition_name, partition_of
from conquiet.redis_transport.client import clone_async
from conquiet.runtime import RuntimeSettings
from conquiet.testing import wait_until_async

Make = Callable[..., PartitionedProcessor]


class Seen:
    """The runs of handlers, and whether two of one key ran concurrently."""

    def __init__(self) -> None:
        self.by_key: dict[str | None, list[int]] = defaultdict(list)
        self.active: set[str] = set()
        self.overlaps = 0
        self.most_active = 0
        self.hold = asyncio.Event()
        self.hold.set()

    @property
    def total(self) -> int:
        return sum(map(len, self.by_key.values()))

    async def run(self, ctx: JobContext) -> None:
        self.overlaps += ctx.key in self.active
        if ctx.key is not None:
            self.active.add(ctx.key)
        self.most_active = max(self.most_active, len(self.active))
        self.by_key[ctx.key].append(ctx.data["n"])
        try:
            await self.hold.wait()
            await asyncio.sleep(0)
        finally:
            self.active.discard(ctx.key)


@pytest.fixture
def stream(key_prefix: str) -> str:
    return f"{key_prefix}payments"


@pytest.fixture
def view(client: RawAsyncRedis, stream: str) -> PartitionedStream:
    return PartitionedStream(client, stream)


@pytest.fixture
def make(client: RawAsyncRedis, stream: str) -> Make:
    def make(seen: Seen, **options: Any) -> PartitionedProcessor:
        settings = ProcessorSettings(refresh_s=0.1, dedupe_window_s=60)
        processor = PartitionedProcessor(client, stream, settings=settings, **{"concurrency": 8} | options)
        processor.handler("pay")(seen.run)
        return processor

    return make


def numbered(key: str | None, first: int, last: int, **options: Any) -> list[NewMessage]:
    return [NewMessage("pay", {"n": n}, key=key, **options) for n in range(first, last + 1)]


async def test_messages_are_spread_and_keys_keep_their_order(make: Make, client: RawAsyncRedis, stream: str) -> None:
    seen = Seen()
    hosts = [make(seen, partitions=8, consumer_id=f"host-{number}") for number in range(2)]
    async with hosts[0], hosts[1]:
        keyed = zip(*[numbered(f"account-{k}", 1, 20) for k in range(20)], strict=True)
        sent = await hosts[0].emit_many([message for row in keyed for message in row])
        sent += await hosts[0].emit_many(numbered(None, 1, 80))
        await wait_until_async(lambda: seen.total == 480)

    assert {one.stream for one in sent} == {partition_name(stream, index) for index in range(8)}
    assert all(seen.by_key[f"account-{k}"] == list(range(1, 21)) for k in range(20))
    assert sorted(seen.by_key[None]) == list(range(1, 81))
    assert seen.overlaps == 0


async def test_script_and_python_agree_on_the_partition_of_a_key(client: RawAsyncRedis, stream: str) -> None:
    emitter = PartitionedEmitter(client, stream)
    await PartitionedStream(client, stream).grow(7)
    for key in ("a", 'say "hi"', "ключ", "x" * 200):
        sent = await emitter.emit("pay", key=key)
        assert sent.stream == partition_name(stream, partition_of(key, 7))
        assert sent.entry_id  # the partition agreed, or it had sent the key on
    assert sum([await client.llen(f"{keys_of(partition_name(stream, index)).order}:moving") for index in range(7)]) == 0


async def test_keys_keep_their_order_while_the_number_grows(make: Make, view: PartitionedStream) -> None:
    """Emitting continues through two growths; hosts and emitters notice them at different times."""
    seen = Seen()
    hosts = [make(seen, partitions=2, consumer_id=f"host-{number}") for number in range(2)]
    accounts = [f"account-{k}" for k in range(12)]
    done = 0
    async with hosts[0], hosts[1]:
        for wanted in (2, 3, 8):
            growing = asyncio.create_task(view.grow(wanted))
            for _ in range(6):
                for host in hosts:
                    batch = [numbered(account, done + 1, done + 5) for account in accounts]
                    await host.emit_many([message for row in zip(*batch, strict=True) for message in row])
                    done += 5
            await growing

            async def is_over() -> bool:
                return await view.layout() == Layout(wanted)  # noqa: B023 - called in this turn

            await wait_until_async(is_over)
        await wait_until_async(lambda: seen.total == done * len(accounts))
        await wait_until_async(lambda: hosts[0].partitions == hosts[1].partitions == 8)
        await hosts[0].emit_many(numbered(None, 1, 16))
        await wait_until_async(lambda: len(seen.by_key[None]) == 16)

    assert all(seen.by_key[account] == list(range(1, done + 1)) for account in accounts)
    assert seen.overlaps == 0


def moving_key(before: int, after: int) -> str:
    """Return a key that a growth moves."""
    return next(f"k{n}" for n in range(1000) if partition_of(f"k{n}", before) != partition_of(f"k{n}", after))


async def test_a_busy_key_stays_until_its_line_is_empty(
    make: Make, view: PartitionedStream, client: RawAsyncRedis, stream: str
) -> None:
    seen = Seen()
    seen.hold.clear()
    key = moving_key(2, 5)
    old, new = (partition_name(stream, partition_of(key, count)) for count in (2, 5))
    async with make(seen, partitions=2) as host:
        await host.emit_many(numbered(key, 1, 2))
        await wait_until_async(lambda: seen.total == 1)
        await view.grow(5)
        # One emitter knows of the growth, and one has not read the number again.
        third = await PartitionedEmitter(client, stream).emit("pay", {"n": 3}, key=key)
        assert (await host.emit("pay", {"n": 4}, key=key)).stream == old
        with pytest.raises(ConfigurationError, match="still growing"):
            await view.grow(6)
        seen.hold.set()
        await wait_until_async(lambda: seen.total == 4)

        async def is_over() -> bool:
            return await view.layout() == Layout(5)

        await wait_until_async(is_over)
        fifth = await host.emit("pay", {"n": 5}, key=key)
        await wait_until_async(lambda: seen.total == 5)

    assert (third.stream, third.ahead) == (old, 2)
    assert fifth.stream == new
    assert seen.by_key[key] == [1, 2, 3, 4, 5]


async def test_waiting_messages_follow_their_key_after_a_growth(
    make: Make, view: PartitionedStream, client: RawAsyncRedis, stream: str
) -> None:
    """A delayed message, a dead letter, and an emitter that knows only the stream's name."""
    seen = Seen()
    key = next(
        k for k in (f"k{n}" for n in range(1000)) if partition_of(k, 2) == 0 and partition_of(k, 5) not in {0, 1}
    )
    host = make(seen, partitions=2)

    async def run_once(ctx: JobContext) -> None:
        if not ctx.envelope.replays:
            raise Reject("no")
        await seen.run(ctx)

    host.handler("refuse")(run_once)
    own = clone_async(client)
    async with host:
        await host.emit("pay", {"n": 1}, key=key, delay_s=1.0)
        await host.emit("refuse", {"n": 2}, key=key)
        await wait_until_async(view.dead_letters().count)
        await view.grow(5)
        await Emitter(own, stream).emit("pay", {"n": 3}, key=key)
        assert (await view.dead_letters().replay(DeadFilter())).replayed == 1
        await wait_until_async(lambda: seen.total == 3)
    await own.aclose()

    new = keys_of(partition_name(stream, partition_of(key, 5)))
    assert await client.xinfo_stream(new.stream)
    assert sorted(seen.by_key[key]) == [1, 2, 3]
    assert seen.overlaps == 0
    assert await client.llen(f"{keys_of(stream).order}:moving") == 0


async def test_operators_see_one_stream(make: Make, view: PartitionedStream) -> None:
    seen = Seen()
    host = make(seen, partitions=4)

    async def refuse(ctx: JobContext) -> None:
        raise Reject("no")

    host.handler("refuse")(refuse)
    async with host:
        await view.pause(event="pay")
        assert list(await view.paused()) == ["pay"]
        await view.grow(6)
        await host.emit_many([NewMessage("refuse") for _ in range(12)])
        await wait_until_async(lambda: host.partitions == 6)

        async def dead() -> bool:
            return (await view.backlog()).dead == 12

        await wait_until_async(dead)
        await host.emit_many(numbered(None, 1, 12))
        assert await view.resume(event="pay")
        await wait_until_async(lambda: seen.total == 12)

    backlog = await view.backlog()
    assert (backlog.partitions, len(backlog.by_partition)) == (6, 6)
    dead_letters = view.dead_letters()
    assert [(cause.event, cause.count) for cause in await dead_letters.causes()] == [("refuse", 12)]
    assert await dead_letters.discard(DeadFilter()) == 12


async def test_a_growth_that_was_cut_off_is_ended_by_the_next_caller(
    view: PartitionedStream, client: RawAsyncRedis, stream: str
) -> None:
    await client.hset(f"{keys_of(stream).base}:partitions", "next", 4)  # announced, then killed

    assert (await view.layout()).to_read == 4
    assert await view.grow(2) == Layout(4)


async def test_a_subscription_ends_in_all_partitions(make: Make) -> None:
    seen, started = Seen(), list[object]()
    host = make(seen, partitions=3)
    host.on("started", started.append)
    host.on("succeeded", started.append)
    host.off("succeeded", started.append)
    async with host:
        await host.emit_many(numbered(None, 1, 6))
        await wait_until_async(lambda: len(started) == 6)
        host.off("started", started.append)
        await host.emit_many(numbered(None, 7, 12))
        await wait_until_async(lambda: seen.total == 12)
        with pytest.raises(ConfigurationError, match="not subscribed"):
            host.off("started", started.append)

    assert len(started) == 6


async def test_wrong_partitions_are_refused(client: RawAsyncRedis) -> None:
    with pytest.raises(ConfigurationError, match="braces"):
        PartitionedProcessor(client, "shop:{7}:orders")
    with pytest.raises(ConfigurationError, match="at most 1024"):
        PartitionedProcessor(client, "orders", partitions=5_000)
    with pytest.raises(ConfigurationError, match="neither stream nor debounce"):
        await PartitionedEmitter(client, "orders").emit("pay", debounce="a", delay_s=1)


async def test_a_batch_handler_reads_all_partitions(make: Make) -> None:
    sizes: list[int] = []
    host = make(Seen(), partitions=4)

    async def gather(members: Any) -> None:
        sizes.append(len(members))

    host.handler("gather", batch=5, within_s=0.01)(gather)
    async with host:
        await host.emit_many([NewMessage("gather", key=f"k{n}") for n in range(20)])
        await wait_until_async(lambda: sum(sizes) == 20)


async def test_an_idle_partition_costs_few_commands_a_second(make: Make, redis_url: str, stream: str) -> None:
    """Counted on the server, without what scripts do there: polls in turn, visits of the housekeeper, shared reads."""
    times: list[float] = []
    processor = PartitionedProcessor(redis.asyncio.Redis.from_url(redis_url), stream, partitions=8, concurrency=8)
    processor.handler("pay")(Seen().run)
    async with processor, redis.asyncio.Redis.from_url(redis_url) as watcher, watcher.monitor() as monitor:
        async for event in monitor.listen():  # an idle worker sends some every second
            times += [event["time"]] if stream in event["command"] and event["client_type"] != "lua" else []
            if times and times[-1] - times[0] > 6:
                break
    begun, ended = times[0] + 2, times[-1]  # without the start
    counted = sum(at > begun for at in times)

    assert counted / (ended - begun) / 8 <= 3  # 2.2 once the housekeeper has found that there is nothing to do


async def test_a_second_cancellation_forces_the_end_of_all_partitions(make: Make) -> None:
    seen = Seen()
    seen.hold.clear()
    host = make(seen, partitions=2, runtime=RuntimeSettings(grace_s=60.0))
    running = asyncio.create_task(host.run())
    await host.emit_many(numbered(None, 1, 4))
    await wait_until_async(lambda: seen.total == 4)

    running.cancel()
    await wait_until_async(lambda: host.status is Status.STOPPING)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 15)
    await asyncio.wait_for(host.close(), 5)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_handler_that_closes_its_partitions_leaves_no_connection_open(make: Make, *, cancelled: bool) -> None:
    hosts: list[PartitionedProcessor] = []

    class Closing(Seen):
        async def run(self, ctx: JobContext) -> None:
            await super().run(ctx)
            if cancelled:
                running.cancel()
            await hosts[0].close()

    host = make(Closing(), partitions=2)
    hosts.append(host)
    running = asyncio.create_task(host.run())
    await host.emit("pay", {"n": 1})

    await asyncio.wait((running,), timeout=15)

    assert running.cancelled() == cancelled
    pool: Any = host._client.connection_pool
    assert not any(connection.is_connected for connection in pool._available_connections)
