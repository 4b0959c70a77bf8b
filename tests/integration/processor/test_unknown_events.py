"""Events without a handler here, and entries that are not messages: data that other processes need is not destroyed."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.errors import ConfigurationError, MalformedMessageError
from conquiet.processor import JobContext, NewMessage, Processor, RetryPolicy
from conquiet.processor.keys import Keys
from conquiet.processor.settings import Unknown
from conquiet.runtime import RuntimeSettings
from conquiet.testing import wait_until_async


@pytest.mark.parametrize("unknown", ["leave", "dead_letter"])
async def test_two_services_with_different_events_in_one_group_both_progress(
    make_processor: Callable[..., Processor], place: Place, unknown: Unknown
) -> None:
    seen: dict[str, list[int]] = {"paid": [], "shipped": []}
    counts: list[tuple[int, int]] = []
    services = []
    for event, runs in seen.items():
        service = make_processor(unknown=unknown, consumer_id=f"service-{event}")
        service.handler(event)(_noting(runs, counts))
        services.append(service)

    async with services[0], services[1]:
        await services[0].emit_many([NewMessage(event, {"n": n}) for n in range(25) for event in seen])
        await wait_until_async(lambda: all(len(runs) == 25 for runs in seen.values()))
        await wait_until_async(lambda: _is(place.pending, 0))

    assert {event: sorted(runs) for event, runs in seen.items()} == {event: list(range(25)) for event in seen}
    assert set(counts) == {(1, 1)}  # attempt and delivery count: neither was charged
    assert await place.dead() == 0


async def test_a_rolling_deploy_does_not_kill_the_messages_of_a_new_event(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    """By default: the old process has no handler, the new one comes two seconds later."""
    seen: list[int] = []
    old, new = make_processor(consumer_id="old"), make_processor(consumer_id="new")
    old.handler("paid")(_noting([], []))
    new.handler("paid")(_noting([], []))
    new.handler("refunded")(_noting(seen, []))

    async with old:
        await old.emit_many([NewMessage("refunded", {"n": n}) for n in range(10)])
        await wait_until_async(lambda: _is(place.waiting, 10))
        async with new:
            await wait_until_async(lambda: len(seen) == 10)

    assert sorted(seen) == list(range(10))
    assert await place.dead() == 0


async def test_a_message_that_is_left_is_not_read_in_a_hot_loop(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor(unknown="leave", unknown_grace_s=0)
    processor.handler("paid")(_noting([], []))

    async with processor:
        await processor.emit("unheard.of", {"n": 1}, id="m")
        began = time.monotonic()
        await wait_until_async(lambda: _is(client.xlen, 4, keys.stream))
        took_s = time.monotonic() - began

    assert took_s > 0.74  # three waits of 250 ms each
    assert {attempt for _, attempt in await place.attempts()} == {1}
    assert await place.dead() == 0


async def test_an_event_unknown_beyond_the_grace_is_dead_lettered_with_its_message(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor(unknown_grace_s=0.4)
    processor.handler("paid")(_noting([], []))

    async with processor:
        await processor.emit("unheard.of", {"n": 1}, id="m")
        await wait_until_async(lambda: _is(place.waiting, 1))
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert (dead.record.reason, dead.record.id, dead.record.attempts) == ("unknown_event", "m", 1)
    assert dead.record.payload is not None
    assert dead.record.payload["data"] == {"n": 1}


async def test_an_ignored_event_is_acknowledged_and_stored_nowhere(
    make_processor: Callable[..., Processor], place: Place, stream: str
) -> None:
    processor = make_processor(unknown={stream: "ignore"})
    processor.handler("paid")(_noting([], []))

    async with processor:
        await processor.emit("unheard.of")
        await wait_until_async(lambda: processor.health().streams[stream].succeeded == 1)
        await wait_until_async(lambda: _is(place.pending, 0))

    assert (await place.waiting(), await place.dead()) == (0, 0)


async def test_each_stream_has_its_own_policy_for_unknown_events(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, key_prefix: str
) -> None:
    shared, own = f"{key_prefix}shared", f"{key_prefix}own"
    processor = make_processor(streams=[shared, own], unknown={shared: "leave"}, unknown_grace_s=0)
    processor.handler("paid")(_noting([], []))

    async with processor:
        await processor.emit("unheard.of", stream=shared)
        await processor.emit("unheard.of", stream=own)
        await wait_until_async(lambda: _is(client.xlen, 1, f"{{{own}}}:dead"))
        await wait_until_async(lambda: _is(client.zcard, 1, f"{{{shared}}}:delayed"))

    assert await client.xlen(f"{{{shared}}}:dead") == 0


async def test_a_processor_without_handlers_refuses_to_start(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, stream: str
) -> None:
    processor = make_processor()
    await processor.emit("paid")

    with pytest.raises(ConfigurationError, match="has no handler"):
        await processor.start()
    with pytest.raises(ConfigurationError, match=r"@processor\.handler"):
        async with make_processor():
            raise AssertionError

    assert await client.xinfo_groups(stream) == []  # not even the group was created


@pytest.mark.parametrize("fields", [{"temperature": "21"}, {"data": '{"temperature":21}'}], ids=["fields", "json"])
@pytest.mark.parametrize("concurrency", [1, 50])
async def test_a_stream_of_foreign_entries_stops_the_processor_and_keeps_them(
    make_processor: Callable[..., Processor],
    place: Place,
    client: RawAsyncRedis,
    stream: str,
    fields: dict[str, str],
    concurrency: int,
) -> None:
    processor = make_processor(concurrency=concurrency)
    processor.handler("paid")(_noting([], []))
    for _ in range(300):
        await client.xadd(stream, fields)

    with pytest.raises(MalformedMessageError, match="no messages of a processor") as caught:
        await asyncio.wait_for(processor.start(), 30)

    assert caught.value.stream == stream
    assert stream in str(caught.value)
    assert await place.dead() == 0
    assert await client.xlen(stream) == 300
    (group,) = await client.xinfo_groups(stream)
    assert group["pending"] + group["lag"] == 300  # none was acknowledged


async def test_foreign_entries_before_a_message_are_dead_lettered_and_it_is_handled(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    seen: list[int] = []
    processor = make_processor(concurrency=1)
    processor.handler("paid")(_noting(seen, []))
    for _ in range(30):
        await client.xadd(stream, {"data": '{"temperature":21}'})
    await processor.emit("paid", {"n": 1})

    async with processor:
        await wait_until_async(lambda: seen == [1])
        await wait_until_async(lambda: _is(place.dead, 30))
        await wait_until_async(lambda: _is(place.pending, 0))


async def test_few_foreign_entries_alone_are_dead_lettered_after_a_moment(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    processor = make_processor()
    processor.handler("paid")(_noting([], []))

    async with processor:
        for _ in range(19):
            await client.xadd(stream, {"data": '{"temperature":21}'})
        await wait_until_async(lambda: _is(place.dead, 19))
        await wait_until_async(lambda: _is(place.pending, 0))


async def test_foreign_entries_can_be_dead_lettered_without_a_limit(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    processor = make_processor(foreign_limit=None, runtime=RuntimeSettings(claim_idle_ms=60_000))
    processor.handler("paid")(_noting([], []))

    async with processor:
        for _ in range(40):
            await client.xadd(stream, {"data": '{"temperature":21}'})
        await wait_until_async(lambda: _is(place.dead, 40))


@pytest.mark.parametrize(("limits", "most"), [({}, 2), ({"max_attempts_limit": 4}, 4)])
async def test_a_foreign_number_of_attempts_is_bounded(
    make_processor: Callable[..., Processor],
    place: Place,
    client: RawAsyncRedis,
    stream: str,
    limits: dict[str, int],
    most: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For any value of a producer the policy holds, unless the operator allows more."""
    runs: list[int] = []
    processor = make_processor(**limits)

    async def fail(ctx: JobContext) -> None:
        assert ctx.max_attempts == most
        runs.append(ctx.attempt)
        raise LookupError

    processor.handler("paid", retry=RetryPolicy.fixed(0, max_attempts=2))(fail)
    async with processor:
        for _ in range(2):
            await client.xadd(stream, {"data": json.dumps({"v": 1, "event": "paid", "max_attempts": 1_000_000_000})})
        await wait_until_async(lambda: _is(place.dead, 2))

    assert sorted(runs) == sorted([*range(1, most + 1)] * 2)
    assert caplog.text.count(f"asks for 1000000000 attempts and gets {most}") == 1


async def test_emit_refuses_more_attempts_than_the_limit(make_processor: Callable[..., Processor]) -> None:
    with pytest.raises(ConfigurationError, match="max_attempts must be at most 100, got 101"):
        await make_processor(max_attempts_limit=100).emit("paid", max_attempts=101)


def _noting(runs: list[int], counts: list[tuple[int, int]]) -> Any:
    async def handler(ctx: JobContext) -> None:
        runs.append(ctx.data["n"])
        counts.append((ctx.attempt, ctx.delivery.delivery_count))

    return handler


async def _is(found: Callable[..., Any], wanted: int, *args: Any) -> bool:
    return bool(await found(*args) == wanted)
