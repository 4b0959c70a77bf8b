"""Emitting: once per id, all of a chunk or none, only the last of a burst, readable by others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.config import QueueConfig
from conquiet.errors import ConfigurationError, PayloadError, QueueError
from conquiet.processor import Emitted, JobContext, NewMessage, Processor
from conquiet.processor.keys import Keys
from conquiet.processor.scripts import script
from conquiet.queue import RedisStreamsQueue
from conquiet.testing import wait_until_async


async def test_an_id_is_emitted_once_within_its_window(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor(dedupe_window_s=90)

    sent = await asyncio.gather(*(processor.emit("pay", {"n": n}, id="order-7") for n in range(20)))

    assert sorted(one.duplicate for one in sent) == [False] + [True] * 19
    assert all(one.duplicate == (one.entry_id is None) for one in sent)
    assert await place.attempts() == [("order-7", 1)]
    assert 0 < await client.pttl(keys.emitted("order-7")) <= 90_000

    await client.delete(keys.emitted("order-7"))  # the window is over
    assert not (await processor.emit("pay", id="order-7")).duplicate


async def test_an_id_counts_for_delayed_messages_and_within_one_chunk(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()

    sent = await processor.emit_many(
        [NewMessage("pay", id="a", delay_s=60), NewMessage("pay", id="a"), NewMessage("pay")]
    )

    assert [one.duplicate for one in sent] == [False, True, False]
    assert await place.waiting() == 1
    assert len(await place.attempts()) == 1


async def test_messages_without_an_id_get_one_each(make_processor: Callable[..., Processor], place: Place) -> None:
    processor = make_processor(chunk_size=7)

    sent = await processor.emit_many([NewMessage("pay", {"n": n}) for n in range(50)])

    assert await place.attempts() == [(one.id, 1) for one in sent]
    assert len({one.id for one in sent}) == 50


async def test_a_chunk_is_there_as_a_whole_or_not_at_all(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys, place: Place
) -> None:
    """One bad message is found before anything is sent."""
    processor = make_processor()
    messages = [NewMessage("pay", {"n": n}) for n in range(10)]

    with pytest.raises(PayloadError) as caught:
        await processor.emit_many([*messages, NewMessage("pay", {"card": {"secret"}})])

    assert "secret" not in str(caught.value)
    assert "card" in str(caught.value)
    assert caught.value.path == "card"
    assert await client.exists(keys.stream) == 0


async def test_a_refusal_names_the_stream_and_no_payload(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, stream: str
) -> None:
    await client.set(stream, "not a stream")

    with pytest.raises(QueueError) as caught:
        await make_processor().emit("pay", {"iban": "DE02"})

    assert stream in str(caught.value)
    assert "DE02" not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize(
    "options",
    [
        {"delay_s": 1, "at": 1},
        {"delay_s": -1},
        {"at": float("nan")},
        {"max_attempts": 0},
        {"id": ""},
        {"debounce": "x"},
        {"debounce": "x", "delay_s": 1, "id": "y"},
        {"stream": "a{}b"},
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_sent(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError):
        await make_processor().emit("pay", **options)


async def test_a_naive_datetime_is_refused(make_processor: Callable[..., Processor]) -> None:
    from datetime import datetime

    with pytest.raises(ConfigurationError, match="time zone"):
        await make_processor().emit("pay", at=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point


async def test_of_a_burst_only_the_last_message_is_handled(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()
    seen: list[Any] = []

    @processor.handler("index")
    async def index(ctx: JobContext) -> None:
        seen.append(ctx.data)

    # Before a host moves due messages: a machine that stalls must not cut the burst in two.
    for number in range(5):
        await processor.emit("index", {"n": number}, delay_s=0.1, debounce="page-1")
    await processor.emit("index", {"n": "other"}, delay_s=0.1, debounce="page-2")
    assert await place.waiting() == 2

    async with processor:
        await wait_until_async(lambda: len(seen) == 2)
        await processor.emit("index", {"n": "later"}, delay_s=0.01, debounce="page-1")
        await wait_until_async(lambda: len(seen) == 3)

    assert sorted(str(data["n"]) for data in seen) == ["4", "later", "other"]


async def test_a_message_can_be_read_and_written_by_the_plain_queue(
    make_processor: Callable[..., Processor], redis_url: str, stream: str
) -> None:
    processor = make_processor()
    seen: list[Any] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append(ctx.data)

    await processor.emit("pay", {"n": 1}, id="m")
    with redis.Redis.from_url(redis_url) as client:
        queue = RedisStreamsQueue(client, QueueConfig(stream, "other-group", "c1"))
        (message,) = queue.read(1_000)
        assert message.payload["event"] == "pay"
        assert message.payload["data"] == {"n": 1}
        queue.enqueue({"v": 1, "event": "pay", "data": {"n": 2}})
        queue.close()

    async with processor:
        await wait_until_async(lambda: seen == [{"n": 1}, {"n": 2}])


async def test_a_handler_can_emit_and_follow_up_once(make_processor: Callable[..., Processor], place: Place) -> None:
    processor = make_processor()
    seen: list[str] = []

    @processor.handler("first")
    async def first(ctx: JobContext) -> None:
        for _ in range(2):  # as a second run would
            await ctx.emit("second", id=f"{ctx.id}:receipt")

    @processor.handler("second")
    async def second(ctx: JobContext) -> None:
        seen.append(ctx.id)

    async with processor:
        await processor.emit("first", id="m")
        await wait_until_async(lambda: seen)

    assert await place.attempts() == [("m", 1), ("m:receipt", 1)]


async def test_every_script_is_in_the_package_and_loads(client: RawAsyncRedis) -> None:
    from importlib import resources

    names = [path.name[:-4] for path in resources.files("conquiet.processor").joinpath("lua").iterdir()]

    assert len(names) >= 15
    for name in names:
        assert (await client.script_load(script(name).source)) in {script(name).sha, script(name).sha.encode()}


@pytest.mark.parametrize(
    ("broken", "options"), [("stream", {}), ("delayed", {"delay_s": 60}), ("wake", {"delay_s": 60})]
)
async def test_a_refused_emit_leaves_no_mark_and_nothing_of_its_chunk(
    make_processor: Callable[..., Processor],
    client: RawAsyncRedis,
    keys: Keys,
    broken: str,
    options: dict[str, Any],
) -> None:
    processor = make_processor()
    chunk = [NewMessage("pay", id="a", **options), NewMessage("pay", id="b", **options), NewMessage("pay", delay_s=60)]
    await client.set(getattr(keys, broken), "another type")

    with pytest.raises(QueueError) as caught:
        await processor.emit_many(chunk)
    assert not caught.value.in_doubt
    assert await client.keys(f"{keys.base}*") in ([], [getattr(keys, broken).encode()])

    await client.delete(getattr(keys, broken))
    assert [sent.duplicate for sent in await processor.emit_many(chunk)] == [False, False, False]


@pytest.mark.parametrize("broken", ["wake", "delayed"])
async def test_a_refused_debounce_leaves_what_waits(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys, broken: str
) -> None:
    processor = make_processor()
    first = await processor.emit("pay", {"n": 1}, delay_s=60, debounce="x")
    await client.rename(getattr(keys, broken), f"{keys.base}:aside")
    await client.set(getattr(keys, broken), "another type")

    with pytest.raises(QueueError):
        await processor.emit("pay", {"n": 2}, delay_s=1, debounce="x")

    await client.rename(f"{keys.base}:aside", getattr(keys, broken))
    (waiting,) = await client.zrange(keys.delayed, 0, -1)
    assert first.id.encode() in waiting


async def test_times_beyond_every_clock_never_become_due(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor(dedupe_window_s=1e300)

    assert not (await processor.emit("pay", id="a")).duplicate
    assert (await processor.emit("pay", id="a")).duplicate
    await processor.emit("pay", delay_s=1e20, debounce="x")
    await processor.emit("pay", delay_s=1e20, debounce="x")
    assert await client.zcard(keys.delayed) == 1


def test_a_processor_that_was_closed_emits_in_the_next_event_loop(redis_url: str, stream: str) -> None:
    """As an application does that is started and ended once for each of its tests."""
    processor = Processor(redis.asyncio.Redis.from_url(redis_url), [stream])

    async def life() -> Emitted:
        emitted = await processor.emit("pay")
        await processor.close()
        return emitted

    assert [asyncio.run(life()).duplicate for _ in range(2)] == [False, False]
