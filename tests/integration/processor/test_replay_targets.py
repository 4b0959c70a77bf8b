"""Replays: for a group that exists, and of all dead letters, with any clock."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.errors import QueueError
from conquiet.processor import DeadFilter, DeadLetters, JobContext, NewMessage, Processor, ReplayReport
from conquiet.processor.keys import Keys
from conquiet.testing import wait_until_async


async def test_a_dead_letter_of_a_lost_group_stays_until_another_is_named(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    dead_letters = await _dead(make_processor, place, 4)
    await client.xgroup_create(stream, "new", id="$")
    await client.xgroup_destroy(stream, "processor")
    stays = ReplayReport(matched=4, unreplayable=4)

    assert await dead_letters.replay(DeadFilter(), dry_run=True) == replace(stays, dry_run=True)
    assert await dead_letters.replay(DeadFilter()) == stays
    assert await dead_letters.replay(DeadFilter(), to="nobody") == stays
    assert await dead_letters.count() == 4

    assert await dead_letters.replay(DeadFilter(), to="new", limit=3) == ReplayReport(matched=3, replayed=3)
    assert await dead_letters.count() == 1
    processor = make_processor(group="new")
    seen: list[str] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append(ctx.id)

    async with processor:
        await wait_until_async(lambda: len(seen) == 3)
    assert set(seen) < {"m0", "m1", "m2", "m3"}


async def test_a_dead_letter_whose_stream_is_gone_stays(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    dead_letters = await _dead(make_processor, place, 1)
    await client.delete(stream)

    assert await dead_letters.replay(DeadFilter()) == ReplayReport(matched=1, unreplayable=1)

    await client.set(stream, "another type")
    with pytest.raises(QueueError):
        await dead_letters.replay(DeadFilter())
    assert await dead_letters.count() == 1


async def test_a_limit_is_filled_with_those_that_can_be_replayed(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    dead_letters = await _dead(make_processor, place, 2)
    await client.xgroup_destroy(stream, "processor")
    await _dead(make_processor, place, 2, group="new")  # it reads both from the beginning, and they die again

    assert await dead_letters.replay(DeadFilter(), limit=1) == ReplayReport(matched=3, replayed=1, unreplayable=2)


async def test_dead_letters_with_ids_ahead_of_the_clock_are_listed(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, keys: Keys
) -> None:
    """After a fail-over, or when the server's clock was set back, new ids continue from the largest id."""
    ahead = int(time.time() * 1000) + 3_600_000
    await client.xadd(keys.dead, {"data": "x"}, id=f"{ahead}-0")
    dead_letters = await _dead(make_processor, place, 2)

    assert sum(cause.count for cause in await dead_letters.causes()) == 3
    assert await dead_letters.replay(DeadFilter()) == ReplayReport(matched=3, replayed=2, unreplayable=1)
    assert await dead_letters.discard(DeadFilter()) == 1


async def _dead(
    make_processor: Callable[..., Processor], place: Place, count: int, *, group: str = "processor"
) -> DeadLetters:
    """Dead-letter this many more messages; messages in the stream are dead-lettered for a new group again."""
    processor = make_processor(group=group)
    wanted = await place.dead() + count
    missing = count - await place.client.xlen(place.keys.stream)

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        raise LookupError

    async with processor:
        await processor.emit_many([NewMessage("pay", id=f"m{number}") for number in range(missing)])
        await wait_until_async(lambda: _is(place.dead, wanted))
    return DeadLetters(place.client, place.keys.stream)


async def _is(found: Callable[[], Any], wanted: int) -> bool:
    return bool(await found() == wanted)
