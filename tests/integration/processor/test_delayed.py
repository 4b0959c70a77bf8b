"""Delays: no message before its time, each once, and without polling."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.integration.processor.conftest import MakeProcessor, Place
from tests.redis_clients import RawAsyncRedis

from conquiet.processor import JobContext, JobState, NewMessage, Processor
from conquiet.processor.delayed import DelayedPromoter, promote_due
from conquiet.processor.keys import Keys
from conquiet.redis_transport.client import clone_async
from conquiet.testing import wait_until_async


@pytest.mark.parametrize("seconds", [1e15, 1.7e308])
async def test_a_message_with_an_invalid_due_time_waits(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys, seconds: float
) -> None:
    processor = make_processor(job_ttl_s=seconds, dedupe_window_s=seconds)

    sent = [
        await processor.emit("remind", delay_s=seconds),
        await processor.emit("remind", at=seconds, id="m"),
        await processor.emit("remind", delay_s=seconds, debounce="x"),
    ]

    found = await promote_due(client, keys, limit=10)
    assert (found.moved, found.waiting) == (0, 3)
    assert all(one.due_ms is not None and one.due_ms >= 1e15 for one in sent)
    assert 1e15 <= (found.next_due_ms or 0) < 2**53
    assert (await processor.jobs.count(keys.stream))[JobState.DELAYED] == 3


@pytest.fixture
def calls() -> list[tuple[str, float]]:
    """Return the id and the time of each call of the handler of ``ran``."""
    return []


@pytest.fixture
def ran(make_processor: MakeProcessor, calls: list[tuple[str, float]]) -> Processor:
    processor = make_processor(refresh_s=30.0)

    async def remind(ctx: JobContext) -> None:
        calls.append((ctx.id, time.time()))

    processor.handler("remind")(remind)
    return processor


@pytest.mark.spec("CM-002.5")
@pytest.mark.parametrize("how", ["delay", "at", "datetime"])
async def test_a_delayed_message_is_not_handled_before_its_time(
    ran: Processor, calls: list[tuple[str, float]], place: Place, how: str
) -> None:
    ways: dict[str, dict[str, Any]] = {
        "delay": {"delay_s": 0.3},
        "at": {"at": time.time() + 3.0},  # long against any stall on the way to emit
        "datetime": {"at": datetime.now(UTC) + timedelta(seconds=3)},
    }

    emitted = await ran.emit("remind", id="m", **ways[how])
    assert emitted.due_ms is not None
    assert await place.waiting() == 1
    async with ran:
        await wait_until_async(lambda: calls)

    assert calls[0][1] >= emitted.due_ms / 1000
    assert await place.waiting() == 0
    assert await place.attempts() == [("m", 1)]


@pytest.mark.spec("CM-006.2")
async def test_a_message_read_before_its_time_is_put_back(
    ran: Processor, calls: list[tuple[str, float]], client: RawAsyncRedis, stream: str, place: Place
) -> None:
    """Another program may write delayed messages straight into the stream."""
    async with ran:
        due_ms = int(time.time() * 1000) + 4_000  # long against any stall on the message's way
        entry = await client.xadd(
            stream, {"data": f'{{"v":1,"event":"remind","id":"m","delay_until_ms":{due_ms},"theirs":1}}'}
        )
        await wait_until_async(lambda: _is(place.waiting, 1))
        assert await place.pending() == 0
        assert calls == []

        await wait_until_async(lambda: calls)

    assert calls[0][1] >= due_ms / 1000
    entries: Any = await client.xrange(stream)
    assert len(entries) == 2
    assert entries[0][0] == entry
    assert b'"theirs":1' in entries[1][1][b"data"]


async def test_a_message_whose_time_is_past_is_handled_at_once(
    ran: Processor, calls: list[tuple[str, float]], client: RawAsyncRedis, stream: str
) -> None:
    async with ran:
        await client.xadd(stream, {"data": '{"v":1,"event":"remind","id":"m","delay_until_ms":1000}'})
        await wait_until_async(lambda: calls)


async def test_an_earlier_message_wakes_a_promoter_that_sleeps_for_a_later_one(
    ran: Processor, calls: list[tuple[str, float]], make_processor: Callable[..., Processor]
) -> None:
    """The promoter would sleep for half a minute; only the wake-up, from another host, makes it look."""
    other = make_processor()
    async with ran:
        await other.emit("remind", id="late", delay_s=600)
        await other.emit("remind", id="early", delay_s=0.2)
        await wait_until_async(lambda: calls)

    assert [name for name, _ in calls] == ["early"]


async def test_the_next_host_moves_messages_that_became_due_without_one(
    ran: Processor, calls: list[tuple[str, float]], make_processor: Callable[..., Processor]
) -> None:
    await make_processor().emit("remind", id="m", delay_s=0.01)
    await asyncio.sleep(0.02)

    async with ran:
        await wait_until_async(lambda: calls)


async def test_many_promoters_move_each_message_once(
    client: RawAsyncRedis, keys: Keys, make_processor: Callable[..., Processor], place: Place
) -> None:
    """With CONQUIET_TORTURE=1 it is a hundred thousand messages due at the same moment."""
    count = 100_000 if os.environ.get("CONQUIET_TORTURE") == "1" else 3_000
    emitter = make_processor()
    at = time.time() + 0.3 + count / 20_000
    await emitter.emit_many([NewMessage("remind", id=f"m{number}", at=at) for number in range(count)])

    async def nothing(_: Any, __: Any) -> None:
        return

    clients = [clone_async(client) for _ in range(4)]
    promoters = [DelayedPromoter(own, [keys], limit=100, refresh_s=1.0, listeners=[nothing]) for own in clients]
    for promoter in promoters:
        await promoter.start()
    await wait_until_async(lambda: _is(place.waiting, 0))
    for promoter, own in zip(promoters, clients, strict=True):
        await promoter.close()
        await own.aclose()

    attempts = await place.attempts()
    assert len(attempts) == len(set(attempts)) == count


async def test_a_promoter_outlives_a_server_that_forgets_its_scripts_and_breaks_connections(
    ran: Processor, calls: list[tuple[str, float]], client: RawAsyncRedis
) -> None:
    async with ran:
        await ran.emit("remind", id="a", delay_s=0.01)
        await wait_until_async(lambda: len(calls) == 1)
        await client.script_flush()
        await client.client_kill_filter(_type="normal", skipme=True)
        await wait_until_async(lambda: ran.health().ready)
        await _emit_again(ran)
        await wait_until_async(lambda: len(calls) == 2)


async def test_a_tick_returns_what_a_host_needs(
    client: RawAsyncRedis, keys: Keys, make_processor: Callable[..., Processor]
) -> None:
    processor = make_processor()
    await processor.emit("remind", delay_s=600)
    await processor.pause(event="other")
    own = clone_async(client)

    found = await promote_due(own, keys, limit=10)

    assert (found.moved, found.waiting, found.dead, found.oldest_dead_ms) == (0, 1, 0, None)
    assert found.next_due_ms is not None
    assert 599_000 < found.next_due_ms - found.now_ms <= 600_000
    assert found.paused.keys() == {"other"}
    assert found.wake_id != "0-0"
    await own.aclose()


async def test_an_idle_host_sends_at_most_two_commands_a_second(
    ran: Processor, client: RawAsyncRedis, key_prefix: str
) -> None:
    """Counted between the idle reads of a second each, on this host's keys alone: a slow machine changes nothing."""
    reads = 0
    sent: list[str] = []  # between the third and the tenth read: the start is over

    async with client.monitor() as monitor, ran:
        async for line in monitor.listen():
            command = str(line["command"])
            if line["client_type"] == "lua" or key_prefix not in command:
                continue
            reads += command.startswith("XREADGROUP")
            if reads == 10:
                break
            if reads >= 3:
                sent.append(command[:60])

    assert len(sent) <= 2 * 7, sent


async def _emit_again(processor: Any) -> None:
    """The first emit may meet the broken connection; with an id it is safe to repeat."""
    from conquiet.errors import QueueError

    try:
        await processor.emit("remind", id="b", delay_s=0.01)
    except QueueError:
        await processor.emit("remind", id="b", delay_s=0.01)


async def _is(question: Any, answer: int) -> bool:
    return bool(await question() == answer)
