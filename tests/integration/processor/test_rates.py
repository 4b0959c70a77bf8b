"""A rate holds after a pause, a downtime and a step of the clock."""

import json
import time
from collections.abc import Callable
from typing import Any

from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.processor import JobContext, Processor, RateLimit
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import clone_async
from conquiet.testing import wait_until_async

HOUR_US = 3_600 * 1_000_000


async def test_rate_reservations_that_were_missed_are_made_again(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    """The state after a pause or a downtime: messages with expired time slots, and one with a current slot."""
    processor = make_processor()
    seen = _rated(processor)
    now = int(time.time() * 1000)
    missed: dict[str, Any] = {
        f"missed-{number}": {"reserved": True, "reserved_ms": now - 7_200_000 + number} for number in range(4)
    }
    held: dict[str, Any] = {"now": {"reserved": True, "reserved_ms": now}, "of an older release": {"reserved": True}}

    async with processor:
        for message_id, turn in (missed | held).items():
            await client.xadd(stream, {"data": json.dumps({"v": 1, "event": "call", "id": message_id} | turn)})
        await wait_until_async(lambda: _is(place.waiting, 3))
        await wait_until_async(lambda: len(seen) == 3)

    assert set(held) < set(seen)
    waiting = [json.loads(member) for member in await client.zrange(place.keys.delayed, 0, -1)]
    booked = [int(score) for _, score in await client.zrange(place.keys.delayed, 0, -1, withscores=True)]
    assert [message["reserved_ms"] for message in waiting] == booked
    assert all(message["reserved"] and message["reserved_ms"] > now for message in waiting)


async def test_rate_reservations_of_parked_messages_are_made_again(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    """Their turns came while the event was paused. All of them would start the moment it is over."""
    processor = make_processor()
    seen = _rated(processor)
    await processor.pause(event="call")

    async with processor:
        turn = {"reserved": True, "reserved_ms": int(time.time() * 1000)}
        for number in range(3):
            await client.xadd(stream, {"data": json.dumps({"v": 1, "event": "call", "id": f"m{number}"} | turn)})
        await wait_until_async(lambda: _is(lambda: client.llen(place.keys.parked_event("call")), 3))
        await processor.resume(event="call")
        await wait_until_async(lambda: _is(place.waiting, 2))

    assert len(seen) == 1


async def test_of_an_entry_that_is_in_other_hands_no_turn_is_booked(client: RawAsyncRedis, place: Place) -> None:
    """Otherwise it would wait here and run there. A reservation wakes the promoters: nothing waits before it."""
    keys = place.keys
    await client.xgroup_create(keys.stream, "processor", "0", mkstream=True)
    entry = (await client.xadd(keys.stream, {"data": "{}"})).decode()
    await client.xreadgroup("processor", "quick", {keys.stream: ">"})
    own = clone_async(client)
    names = (keys.stream, keys.delayed, keys.wake, keys.rate("call"), keys.cancel)

    async def turn_of(consumer: str) -> Any:
        args = ("processor", consumer, entry, '{"v":1}', HOUR_US, 1)
        return await script("reserve_rate").call(own, names, args, stream=keys.stream)

    assert await turn_of("quick") == 0  # now; the next one is an hour away
    assert await turn_of("slow") == -1
    assert (await place.pending(), await place.waiting(), await client.xlen(keys.wake)) == (1, 0, 0)
    assert 3_500_000 < await turn_of("quick") <= 3_600_000
    assert (await place.pending(), await place.waiting(), await client.xlen(keys.wake)) == (0, 1, 1)
    await own.aclose()


async def test_a_quiet_time_gives_no_more_than_the_burst(client: RawAsyncRedis, place: Place) -> None:
    """Two in a burst and one an hour: after an hour and a half without any, the third waits a whole hour."""
    keys = place.keys
    await client.xgroup_create(keys.stream, "processor", "0", mkstream=True)
    entries = [(await client.xadd(keys.stream, {"data": "{}"})).decode() for _ in range(3)]
    await client.xreadgroup("processor", "quick", {keys.stream: ">"})
    seconds, micros = await client.time()
    now = seconds * 1_000_000 + micros
    await client.set(keys.rate("call"), f"{now - HOUR_US * 3 // 2}:{now - HOUR_US}")
    own = clone_async(client)
    names = (keys.stream, keys.delayed, keys.wake, keys.rate("call"), keys.cancel)

    waits_ms = [
        await script("reserve_rate").call(
            own, names, ("processor", "quick", entry, '{"v":1}', HOUR_US, 2), stream=keys.stream
        )
        for entry in entries
    ]
    await own.aclose()

    assert waits_ms[:2] == [0, 0]
    assert 3_500_000 < waits_ms[2] <= 3_600_000


async def test_a_clock_that_was_set_back_takes_the_turns_with_it(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis
) -> None:
    processor = make_processor()
    seen = _rated(processor)
    then = int(time.time() * 1_000_000) + 10 * HOUR_US
    await client.set(place.keys.rate("call"), f"{then + HOUR_US}:{then}")  # ten hours ahead, one message waits

    async with processor:
        await processor.emit("call")
        await wait_until_async(lambda: _is(place.waiting, 1))

    ((_, due_ms),) = await client.zrange(place.keys.delayed, 0, -1, withscores=True)
    assert due_ms / 1000 - time.time() < 3_700
    assert seen == []


def _rated(processor: Processor) -> list[str]:
    """Register a handler that may run once an hour, and return the ids it has seen."""
    seen: list[str] = []

    @processor.handler("call", rate=RateLimit(1, per_s=3_600))
    async def call(ctx: JobContext) -> None:
        seen.append(ctx.id)

    return seen


async def _is(found: Callable[[], Any], wanted: int) -> bool:
    return bool(await found() == wanted)
