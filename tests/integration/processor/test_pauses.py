"""Pauses: stored on the server, followed by all hosts, and without loss of messages."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processor.conftest import MakeProcessor, Place
from tests.redis_clients import RawAsyncRedis

from conquiet.processor import JobContext, NewMessage, Processor
from conquiet.processor.delayed import promote_due
from conquiet.processor.keys import Keys
from conquiet.processor.pauses import Pauses
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import clone_async
from conquiet.runtime import RuntimeSettings
from conquiet.testing import wait_until_async


@pytest.fixture
def seen() -> list[str]:
    """Return the ids that the processors of ``make_noting`` handled."""
    return []


@pytest.fixture
def make_noting(make_processor: MakeProcessor, seen: list[str]) -> MakeProcessor:
    """Return a factory of processors that record in ``seen`` what they handled."""

    def make(**options: Any) -> Processor:
        async def note(ctx: JobContext) -> None:
            seen.append(ctx.id)

        processor = make_processor(**options)
        for event in ("pay", "mail"):
            processor.handler(event)(note)
        return processor

    return make


@pytest.mark.spec("CM-002.4")
async def test_no_host_reads_a_paused_stream_until_it_is_resumed(
    make_noting: MakeProcessor, seen: list[str], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    """The refresh is far away: it is the wake-up that reaches the hosts."""
    hosts = [make_noting(refresh_s=600.0, group="processor") for _ in range(2)]
    operator = make_noting()

    async with hosts[0], hosts[1]:
        assert await operator.pause()
        assert not await operator.pause()
        await wait_until_async(lambda: not any(_reads(host, stream) for host in hosts))
        await operator.emit_many([NewMessage("pay", id=f"m{number}") for number in range(20)])
        await asyncio.sleep(0.3)
        assert seen == []
        assert (await operator.paused()).keys() == {"*"}

        assert await operator.resume()
        await wait_until_async(lambda: len(seen) == 20)

    assert sorted(seen) == sorted(f"m{number}" for number in range(20))


async def test_a_pause_outlives_the_hosts(make_noting: MakeProcessor, seen: list[str]) -> None:
    operator = make_noting()
    await operator.pause()
    await operator.emit("pay", id="m")

    host = make_noting()
    async with host:
        await asyncio.sleep(0.3)
        assert seen == []
        await operator.resume()
        await wait_until_async(lambda: seen == ["m"])


async def test_other_streams_go_on_and_what_runs_is_acknowledged(
    make_processor: Callable[..., Processor], stream: str, place: Place
) -> None:
    other = f"{stream}-other"
    processor = make_processor(streams=[stream, other])
    running, finish = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @processor.handler("slow")
    async def slow(ctx: JobContext) -> None:
        running.set()
        await finish.wait()

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append(ctx.id)

    async with processor:
        await processor.emit("slow")
        await running.wait()
        await processor.pause(stream)
        await wait_until_async(lambda: not _reads(processor, stream))
        await processor.emit("pay", id="paused")
        await processor.emit("pay", id="goes on", stream=other)
        await wait_until_async(lambda: seen == ["goes on"])
        finish.set()
        await wait_until_async(lambda: _is(place.pending, 0))
        await processor.pause(other)
        await wait_until_async(lambda: processor._pauses.is_stream_paused(other))
        await processor.resume(stream)
        await processor.resume(other)
        await wait_until_async(lambda: seen == ["goes on", "paused"])


async def test_stale_work_of_a_paused_stream_is_not_taken_over(
    make_noting: MakeProcessor, seen: list[str], client: RawAsyncRedis, stream: str
) -> None:
    """It is stale by far and the claim time long, so that a machine that stalls changes nothing."""
    other = f"{stream}-other"
    operator = make_noting()
    for name, message_id in ((stream, "paused"), (other, "goes on")):
        await client.xgroup_create(name, "processor", "0", mkstream=True)
        entry = (await operator.emit("pay", id=message_id, stream=name)).entry_id
        await client.xreadgroup("processor", "dead-host", {name: ">"})
        await client.xclaim(name, "processor", "dead-host", 0, [entry], idle=3_600_000, retrycount=1)
    await operator.pause()

    # The engine checks each stream at least every 0.75 s.
    host = make_noting(streams=[stream, other], runtime=RuntimeSettings(claim_idle_ms=2_000))
    async with host:
        await wait_until_async(lambda: seen == ["goes on"])
        await asyncio.sleep(0.8)
        (left,) = await client.xpending_range(stream, "processor", "-", "+", 10)
        assert (left["consumer"], left["times_delivered"]) == (b"dead-host", 1)
        await operator.resume()
        await wait_until_async(lambda: len(seen) > 1)

    assert seen == ["goes on", "paused"]


async def test_a_paused_event_waits_while_the_others_of_its_stream_go_on(
    make_noting: MakeProcessor, seen: list[str], place: Place, client: RawAsyncRedis, keys: Keys
) -> None:
    host, operator = make_noting(refresh_s=60.0), make_noting()

    async with host:
        await operator.pause(event="mail")
        await wait_until_async(lambda: host._pauses.is_event_paused(keys.stream, "mail"))
        await operator.emit_many([NewMessage("mail", {"n": 1}, id="mail"), NewMessage("pay", id="pay")])
        await wait_until_async(lambda: seen == ["pay"])
        await wait_until_async(lambda: _is(place.pending, 0))
        assert await client.llen(keys.parked_event("mail")) == 1

        await operator.resume(event="mail")
        await wait_until_async(lambda: seen == ["pay", "mail"])

    assert await client.exists(keys.parked, keys.parked_event("mail"), keys.paused) == 0


async def test_a_message_is_not_parked_once_its_pause_is_over(
    make_noting: MakeProcessor, seen: list[str], client: RawAsyncRedis, keys: Keys
) -> None:
    """A host that does not know of the end yet would park it where no host reads any more."""
    host = make_noting(refresh_s=60.0)

    async with host:
        host._pauses._known[keys.stream] = frozenset({"mail"})
        await host.emit("mail", id="m")
        await wait_until_async(lambda: seen == ["m"])

    assert await client.exists(keys.parked_event("mail")) == 0


async def test_an_entry_that_is_in_other_hands_is_not_parked(client: RawAsyncRedis, keys: Keys, place: Place) -> None:
    """Otherwise it would return while the other host works on it."""
    own = clone_async(client)
    await Pauses(own).pause(keys.stream, event="mail")
    await client.xgroup_create(keys.stream, "processor", "0", mkstream=True)
    entry = (await client.xadd(keys.stream, {"data": "{}"})).decode()
    await client.xreadgroup("processor", "quick", {keys.stream: ">"})
    names = (keys.stream, keys.paused, keys.parked, keys.parked_event("mail"), keys.cancel)

    async def parked_by(consumer: str) -> Any:
        args = ("processor", consumer, "mail", entry, "{}")
        return await script("park").call(own, names, args, stream=keys.stream)

    assert await parked_by("slow") == 0
    assert (await place.pending(), await client.exists(keys.parked, keys.parked_event("mail"))) == (1, 0)
    assert await parked_by("quick") == 1
    assert (await place.pending(), await client.llen(keys.parked_event("mail"))) == (0, 1)
    await own.aclose()


async def test_parked_messages_stay_parked_while_their_event_is_paused(client: RawAsyncRedis, keys: Keys) -> None:
    """A host returns a limited number at a time, and may die in between: the rest is still known as parked."""
    own = clone_async(client)
    await client.sadd(keys.parked, "mail")
    await client.rpush(keys.parked_event("mail"), *"abc")
    names = (keys.stream, keys.paused, keys.parked, keys.parked_event("mail"), keys.cancel)

    async def left() -> Any:
        return await script("unpark").call(own, names, ("mail", 2), stream=keys.stream)

    await Pauses(own).pause(keys.stream, event="mail")
    assert await left() == 0
    assert await client.xlen(keys.stream) == 0
    await Pauses(own).resume(keys.stream, event="mail")
    assert await left() == 1
    assert await client.smembers(keys.parked) == {b"mail"}
    assert await left() == 0
    assert await client.exists(keys.parked) == 0
    assert [fields[b"data"] for _, fields in await client.xrange(keys.stream)] == [b"a", b"b", b"c"]
    await own.aclose()


async def test_parked_messages_come_back_without_the_host_that_parked_them(
    make_noting: MakeProcessor, seen: list[str], client: RawAsyncRedis, keys: Keys
) -> None:
    first = make_noting()
    await first.pause(event="mail")
    async with first:
        await first.emit_many([NewMessage("mail", id=f"m{number}") for number in range(450)])
        await wait_until_async(lambda: _is(lambda: client.llen(keys.parked_event("mail")), 450))
    # The operator's own process dies between ending the pause and anything else.
    own = clone_async(client)
    await script("resume").call(own, (keys.paused, keys.wake), ("mail",), stream=keys.stream)
    await own.aclose()

    second = make_noting()
    async with second:
        await wait_until_async(lambda: len(set(seen)) == 450)
    assert len(seen) == 450


async def test_a_pause_can_be_set_without_a_processor(client: RawAsyncRedis, keys: Keys) -> None:
    own = clone_async(client)
    pauses = Pauses(own)

    await pauses.pause(keys.stream, event="mail")
    await pauses.on_poll(keys, await promote_due(own, keys, limit=1))

    assert pauses.is_event_paused(keys.stream, "mail")
    assert not pauses.is_stream_paused(keys.stream)
    assert await pauses.resume(keys.stream, event="mail")
    assert await pauses.paused(keys.stream) == {}
    await own.aclose()


async def test_a_pause_set_by_hand_counts_and_an_invalid_name_is_ignored(
    make_noting: MakeProcessor, seen: list[str], client: RawAsyncRedis, keys: Keys
) -> None:
    await client.hset(keys.paused, mapping={"*": "yes", b"\xff": "1"})
    await client.sadd(keys.parked, b"\xfe")
    await client.zadd(keys.delayed, {"no message": float("inf")})
    processor = make_noting()

    async with processor:
        assert await processor.paused() == {"*": 0, "\\xff": 1}
        await processor.emit("pay")
        await processor.resume()
        await wait_until_async(lambda: seen)


def _reads(host: Any, stream: str) -> bool:
    """Return whether the engine reads the stream: until it knows of the pause and its waiting read has ended."""
    return any(stream in shard.fetcher._streams for shard in host._engine._shards)


async def _is(question: Any, answer: int) -> bool:
    return bool(await question() == answer)
