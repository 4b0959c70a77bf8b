"""A message is stored unchanged, independent of its handler, its size and its depth."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.errors import PayloadError
from conquiet.processor import DeadFilter, JobContext, Processor, RetryPolicy
from conquiet.processor.keys import Keys
from conquiet.runtime import EngineError, RuntimeSettings
from conquiet.testing import wait_until_async

TWICE = RetryPolicy.fixed(0.01, max_attempts=2)


async def test_a_handler_changes_neither_its_retry_nor_its_dead_letter(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()
    seen: list[dict[str, Any]] = []

    @processor.handler("pay", retry=TWICE)
    async def pay(ctx: JobContext) -> None:
        seen.append(dict(ctx.data))
        ctx.data.pop("to")
        ctx.data["at"] = object()  # and this could not even be written
        raise LookupError

    async with processor:
        await processor.emit("pay", {"to": "jane", "n": [1, 2.5, "ü"]})
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert seen == [{"to": "jane", "n": [1, 2.5, "ü"]}] * 2
    assert dead.record.payload is not None
    assert dead.record.payload["data"] == {"to": "jane", "n": [1, 2.5, "ü"]}


@pytest.mark.parametrize("limit", [1_000, 2_000_000])
async def test_a_message_of_the_largest_size_is_tried_again(
    make_processor: Callable[..., Processor], place: Place, limit: int
) -> None:
    """With a limit of the processor's below and above the engine's own."""
    processor = make_processor(max_payload_bytes=limit, runtime=RuntimeSettings(max_payload_bytes=1_000))
    runs: list[int] = []

    @processor.handler("pay", retry=TWICE)
    async def pay(ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        raise LookupError

    async with processor:
        empty = len((await _emitted(processor, place))["data"])
        await processor.emit("pay", {"x": "y" * (limit - empty)}, id="0" * 24)
        with pytest.raises(PayloadError):
            await processor.emit("pay", {"x": "y" * (limit - empty + 1)}, id="1" * 24)
        await wait_until_async(lambda: _is(place.dead, 2))
        page = await processor.dead_letters().list()

    assert sorted(runs) == [1, 1, 2, 2]
    assert {item.record.reason for item in page.items} == {"attempts_exhausted"}


async def test_an_entry_that_is_only_too_large_is_kept_whole(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    processor = make_processor(max_payload_bytes=100_000, runtime=RuntimeSettings(max_payload_bytes=100_000))
    processor.handler("pay")(_never)
    large = '{"v":1,"event":"pay","data":{"x":"' + "y" * 200_000 + '"}}'

    async with processor:
        await client.xadd(stream, {"data": large})
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert dead.record.reason == "malformed"
    assert dead.record.raw == {"data": large}


@pytest.mark.parametrize("own_attempts", [None, 2])
async def test_the_deepest_payload_is_retried_dead_lettered_and_replayed(
    make_processor: Callable[..., Processor],
    place: Place,
    client: RawAsyncRedis,
    stream: str,
    own_attempts: int | None,
) -> None:
    """And what another writer nested deeper: it could be read, so it can be written."""
    processor = make_processor()
    runs: list[tuple[str, int]] = []

    @processor.handler("pay", retry=TWICE)
    async def pay(ctx: JobContext) -> None:
        runs.append((ctx.id, ctx.attempt))
        raise LookupError

    async with processor:
        await processor.emit("pay", _nested(100), id="ours", max_attempts=own_attempts)
        with pytest.raises(PayloadError):
            await processor.emit("pay", _nested(101), max_attempts=own_attempts)
        deep = json.dumps({"v": 1, "event": "pay", "id": "theirs", "data": _nested(300)})
        await client.xadd(stream, {"data": deep})
        await wait_until_async(lambda: _is(place.dead, 2))
        assert (await processor.dead_letters().replay(DeadFilter())).replayed == 2
        await wait_until_async(lambda: len(runs) == 8)

    assert sorted(runs) == sorted([("ours", 1), ("ours", 2), ("theirs", 1), ("theirs", 2)] * 2)


async def test_two_messages_of_one_id_stay_two_while_they_wait(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    """Another writer may give an id twice; here it is even the same message. Each is its own work."""
    processor = make_processor()
    soon = int(time.time() * 1000) + 500
    twin = json.dumps({"v": 1, "event": "remind", "id": "order-7", "delay_until_ms": soon, "data": {}})
    seen: list[str] = []

    @processor.handler("remind", retry=RetryPolicy.fixed(0.2, max_attempts=2))
    async def remind(ctx: JobContext) -> None:
        seen.append(ctx.id)
        if ctx.attempt == 1:
            raise LookupError

    for _ in range(2):
        await client.xadd(stream, {"data": twin})
    async with processor:
        await wait_until_async(lambda: _is(place.waiting, 2))
        await wait_until_async(lambda: len(seen) == 4)

    assert seen == ["order-7"] * 4


async def test_a_malformed_entry_is_dead_lettered_once_the_server_allows_it(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor(refresh_s=0.1, foreign_limit=None, runtime=RuntimeSettings(claim_idle_ms=200))
    processor.handler("pay")(_never)
    refused: list[EngineError] = []
    processor.on("error", lambda event: refused.append(event) if event.message is not None else None)

    async with processor:
        await client.set(keys.dead, "another type")
        await client.xadd(keys.stream, {"other": "x"})
        await wait_until_async(lambda: bool(refused))
        await client.delete(keys.dead)
        await wait_until_async(lambda: _is(place.dead, 1))
        assert await place.pending() == 0


def _nested(levels: int) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(levels - 1):
        data = {"a": data}
    return data


async def _emitted(processor: Processor, place: Place) -> dict[str, bytes]:
    """The fields of an entry as the processor writes it."""
    sent = await processor.emit("pay", {"x": ""})
    ((_, fields),) = await place.client.xrange(place.keys.stream, sent.entry_id, sent.entry_id)
    return {name.decode(): value for name, value in fields.items()}


async def _is(found: Callable[[], Any], wanted: int) -> bool:
    return bool(await found() == wanted)


async def _never(_: JobContext) -> None:
    raise AssertionError
