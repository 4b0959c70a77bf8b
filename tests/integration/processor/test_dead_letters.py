"""Dead letters: complete, scrubbed, and brought back once."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.metrics.registry import PROCESSOR_DEAD_LETTERS, PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL
from conquiet.processor import (
    DeadFilter,
    DeadLetters,
    JobContext,
    NewMessage,
    Processor,
    Reject,
    ReplayReport,
    RetryPolicy,
)
from conquiet.processor.keys import Keys
from conquiet.redis_transport.client import clone_async
from conquiet.runtime import RuntimeSettings
from conquiet.testing import wait_until_async

NESTED = '{"reason":"r","id":"m","entry_id":"1-0","group":"g","payload":' + '{"a":' * 100_000 + "1" + "}" * 100_001
"""A record of ours, nested deeper than a stack holds."""


@pytest.mark.spec("CM-006.4", "CM-002.7")
async def test_a_message_without_attempts_left_becomes_a_dead_letter_with_its_story(
    make_processor: Callable[..., Processor], place: Place, stream: str
) -> None:
    processor = make_processor()
    entries: list[str] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(0.01, max_attempts=2))
    async def pay(ctx: JobContext) -> None:
        entries.append(ctx.delivery.id)
        raise LookupError("no account of jane@example.org")

    async with processor:
        await processor.emit("pay", {"iban": "DE02"}, id="m")
        await wait_until_async(lambda: _is(place.dead, 1))
        await wait_until_async(lambda: _is(place.pending, 0))
        dead_letters = processor.dead_letters()
        (dead,) = (await dead_letters.list()).items
        shown = await dead_letters.show(dead.id)

    assert shown == dead
    record = dead.record
    assert (record.reason, record.event, record.id) == ("attempts_exhausted", "pay", "m")
    assert (record.error_type, record.error) == ("LookupError", "")
    assert 'in pay\n    raise LookupError("no account' in record.traceback
    assert (record.attempts, record.deliveries, record.entry_id, record.group) == (2, 1, entries[1], "processor")
    assert 0 < record.emitted_ms <= record.first_failed_ms < record.failed_ms <= dead.died_ms + 1
    assert record.host
    assert record.consumer == processor.consumer_id
    assert record.payload is not None
    assert record.payload["data"] == {"iban": "DE02"}
    assert "DE02" not in repr(dead)


async def test_error_text_is_kept_on_request_and_the_text_of_reject_always(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    texts = {}
    for store in (False, True):
        processor = make_processor(store_error_text=store)
        processor.handler("leak")(_raising(ValueError("jane@example.org")))
        processor.handler("refuse")(_raising(Reject("account is closed")))
        async with processor:
            await processor.emit_many([NewMessage("leak"), NewMessage("refuse")])
            await wait_until_async(lambda: _is(place.dead, 2))
            page = await processor.dead_letters().list()
            texts[store] = {item.record.event: item.record.error for item in page.items}
            await processor.dead_letters().discard(DeadFilter())

    assert texts[False] == {"leak": "", "refuse": "account is closed"}
    assert texts[True] == {"leak": "jane@example.org", "refuse": "account is closed"}


async def test_no_credential_is_stored_with_an_error(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor(store_error_text=True)

    @processor.handler("leak")
    async def leak(ctx: JobContext) -> None:
        raise ValueError("cannot reach mysql://root:s3cret@db/shop, password=s3cret")

    processor.handler("refuse")(_raising(Reject("redis://:s3cret@cache:6379 is closed")))
    async with processor:
        await processor.emit_many([NewMessage("leak"), NewMessage("refuse")])
        await wait_until_async(lambda: _is(place.dead, 2))
        page = await processor.dead_letters().list()
        stored = await client.xrange(keys.dead)

    assert {item.record.event: item.record.error for item in page.items} == {
        "leak": "cannot reach mysql://***@db/shop, password=***",
        "refuse": "redis://***@cache:6379 is closed",
    }
    assert b"s3cret" not in b"".join(value for _, fields in stored for value in fields.values())  # nor in a traceback


async def test_a_cause_is_recorded_by_type_and_frames_only(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        try:
            _fail_deep("DE02")
        except ValueError as error:
            raise RuntimeError("DE02") from error

    async with processor:
        await processor.emit("pay")
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert dead.record.traceback.index("RuntimeError") < dead.record.traceback.index("_fail_deep")
    assert "DE02" not in dead.record.traceback.replace('RuntimeError("DE02")', "").replace('_fail_deep("DE02")', "")


async def test_without_a_grace_an_unknown_event_is_dead_at_once(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor(retry=RetryPolicy.fixed(0, max_attempts=5), unknown_grace_s=0)
    processor.handler("pay")(_raising(AssertionError()))

    async with processor:
        await processor.emit("unheard.of", id="m")
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert (dead.record.reason, dead.record.event, dead.record.attempts) == ("unknown_event", "unheard.of", 1)
    assert await place.attempts() == [("m", 1)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"data": '{"plain":1}'}, "not_an_envelope"),
        ({"data": '{"v":99,"event":"pay"}'}, "not_an_envelope"),
        ({"data": "{"}, "malformed"),
        ({"data": b"\xff\xfe"}, "malformed"),
        ({"other": "x", "more": "y"}, "malformed"),
    ],
)
async def test_a_foreign_entry_is_dead_lettered_and_stops_no_other(
    make_processor: Callable[..., Processor],
    client: RawAsyncRedis,
    stream: str,
    place: Place,
    fields: Any,
    reason: str,
) -> None:
    processor = make_processor()
    handled = asyncio.Event()

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        handled.set()

    async with processor:
        await client.xadd(stream, fields)
        await processor.emit("pay")
        await asyncio.wait_for(handled.wait(), 60)
        await wait_until_async(lambda: _is(place.dead, 1))
        await wait_until_async(lambda: _is(place.pending, 0))
        (dead,) = (await processor.dead_letters().list()).items
        report = await processor.dead_letters().replay(DeadFilter())

    assert dead.record.reason == reason
    assert dead.record.error
    assert dead.record.payload or dead.record.raw
    assert report == ReplayReport(matched=1, unreplayable=1)


async def test_a_message_that_kills_its_workers_is_dead_lettered(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, stream: str, place: Place
) -> None:
    """It is not run again: the server counts the deliveries to killed processes too."""
    processor = make_processor(runtime=RuntimeSettings(max_deliveries=3, claim_idle_ms=2_000))
    runs: list[str] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        runs.append(ctx.id)

    await client.xgroup_create(stream, "processor", "0", mkstream=True)
    entry = (await processor.emit("pay", id="m")).entry_id
    await client.xreadgroup("processor", "killed", {stream: ">"})
    await client.xclaim(stream, "processor", "killed", 0, [entry], idle=60_000, retrycount=3)

    async with processor:
        await wait_until_async(lambda: _is(place.dead, 1))
        await wait_until_async(lambda: _is(place.pending, 0))
        (dead,) = (await processor.dead_letters().list()).items

    assert runs == []
    assert (dead.record.reason, dead.record.deliveries, dead.record.id) == ("deliveries_exhausted", 4, "m")


async def test_pages_go_through_all_of_them(make_processor: Callable[..., Processor], place: Place) -> None:
    dead_letters = await _dead(make_processor, place, 25)

    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await dead_letters.list(cursor=cursor, limit=10)
        seen += [item.record.id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break

    assert sorted(seen) == sorted(f"m{number}" for number in range(25))
    assert await dead_letters.count() == 25


async def test_groups_say_what_they_died_of(make_processor: Callable[..., Processor], place: Place) -> None:
    dead_letters = await _dead(make_processor, place, 5)

    causes = await dead_letters.causes()

    assert [(cause.event, cause.error_type, cause.count) for cause in causes] == [
        ("odd", "ValueError", 2),
        ("even", "KeyError", 3),
    ][::-1]
    assert await dead_letters.show(causes[0].example_id) is not None


async def test_a_replayed_message_gets_all_its_attempts_again(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    dead_letters = await _dead(make_processor, place, 6)
    progress: list[ReplayReport] = []
    odd = DeadFilter(event="odd", error_type="ValueError")

    assert await dead_letters.replay(odd, dry_run=True) == ReplayReport(matched=3, replayed=3, dry_run=True)
    assert await dead_letters.count() == 6
    assert await dead_letters.replay(odd, on_progress=progress.append) == ReplayReport(matched=3, replayed=3)

    assert progress[-1].replayed == 3
    assert await dead_letters.count() == 3
    processor = make_processor()
    seen: dict[str, Any] = {}

    @processor.handler("odd")
    async def odd_now_works(ctx: JobContext) -> None:
        seen[ctx.id] = (ctx.data, ctx.attempt, ctx.envelope.replays)

    async with processor:
        await wait_until_async(lambda: len(seen) == 3)
    assert seen == {f"m{number}": ({"n": number}, 1, 1) for number in (1, 3, 5)}


async def test_dead_letters_are_replayed_by_id_by_number_or_by_time(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    dead_letters = await _dead(make_processor, place, 6)
    page = await dead_letters.list()

    assert (await dead_letters.replay(DeadFilter(id=page.items[3].id))).replayed == 1
    assert (await dead_letters.replay(DeadFilter(), limit=2)).replayed == 2
    assert (await dead_letters.replay(DeadFilter(before_ms=1))).matched == 0
    assert (await dead_letters.replay(DeadFilter(since_ms=1, reason="attempts_exhausted"))).matched == 0
    assert (await dead_letters.replay(DeadFilter(id="1-1"))).matched == 0
    assert (await dead_letters.replay(DeadFilter(since_ms=1, reason="not_retryable"))).replayed == 3


async def test_of_two_who_replay_the_same_one_does(
    make_processor: Callable[..., Processor], place: Place, client: RawAsyncRedis, stream: str
) -> None:
    await _dead(make_processor, place, 300)
    before = len(await place.attempts())
    clients = [clone_async(client) for _ in range(3)]

    reports = await asyncio.gather(*(DeadLetters(own, stream).replay(DeadFilter()) for own in clients))

    assert sum(report.replayed for report in reports) == 300
    assert len(await place.attempts()) - before == 300
    for own in clients:
        await own.aclose()


async def test_a_rate_is_kept_by_waiting(make_processor: Callable[..., Processor], place: Place) -> None:
    dead_letters = await _dead(make_processor, place, 6)
    loop = asyncio.get_running_loop()
    began = loop.time()

    await dead_letters.replay(DeadFilter(), rate_per_s=10)

    assert loop.time() - began >= 0.45  # the first immediately, the sixth after half a second


async def test_discarded_ones_are_gone(make_processor: Callable[..., Processor], place: Place) -> None:
    dead_letters = await _dead(make_processor, place, 6)

    assert await dead_letters.discard(DeadFilter(event="odd"), dry_run=True) == 3
    assert await dead_letters.discard(DeadFilter(event="odd")) == 3
    assert await dead_letters.count() == 3
    assert {item.record.event for item in (await dead_letters.list()).items} == {"even"}


async def test_retention_keeps_the_newest_and_counts_what_falls(
    make_processor: Callable[..., Processor], place: Place, stream: str
) -> None:
    dead_letters = await _dead(make_processor, place, 6, dead_letters_max=4)

    assert await dead_letters.count() == 4
    fallen = PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL.labels(stream)._value.get()
    assert fallen == 2
    assert await dead_letters.trim(max_count=3) == 1
    await asyncio.sleep(0.005)
    assert await dead_letters.trim(max_age_s=0.001) == 3


async def test_retention_by_age_applies_when_the_next_one_dies(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    dead_letters = await _dead(make_processor, place, 3)
    await asyncio.sleep(0.06)

    await _dead(make_processor, place, 1, prefix="later", dead_letters_max_age_s=0.05)

    assert await dead_letters.count() == 1


async def test_depth_and_age_are_measured(make_processor: Callable[..., Processor], place: Place, stream: str) -> None:
    await _dead(make_processor, place, 3)
    processor = make_processor()
    processor.handler("pay")(_raising(AssertionError()))

    async with processor:
        await wait_until_async(lambda: PROCESSOR_DEAD_LETTERS.labels(stream)._value.get() == 3)


@pytest.mark.parametrize(
    ("settings", "kept"), [({"dead_letters_max_age_s": 3_600}, 1), ({"dead_letters_max": 2}, 2)], ids=["age", "count"]
)
async def test_a_retention_holds_also_when_nothing_dies_any_more(
    make_processor: Callable[..., Processor],
    place: Place,
    client: RawAsyncRedis,
    keys: Keys,
    settings: dict[str, Any],
    kept: int,
) -> None:
    for age_ms in (7_200_000, 3_601_000, 60_000):
        await client.xadd(keys.dead, {"data": "x"}, id=f"{int(time.time() * 1000) - age_ms}-0")
    fallen = PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL.labels(keys.stream)

    processor = make_processor(**settings)
    processor.handler("pay")(_raising(AssertionError()))
    async with processor:  # it looks once before it begins
        assert await place.dead() == kept
    assert fallen._value.get() == 3 - kept


@pytest.mark.parametrize("data", ["not ours", b"\xff", NESTED], ids=["text", "bytes", "nested"])
async def test_foreign_dead_letters_are_listed_and_can_be_discarded(
    client: RawAsyncRedis, make_processor: Callable[..., Processor], keys: Keys, data: Any
) -> None:
    await client.xadd(keys.dead, {"data": data})
    dead_letters = make_processor().dead_letters()

    (dead,) = (await dead_letters.list()).items

    assert dead.record.reason == "unreadable"
    assert (await dead_letters.replay(DeadFilter())).unreplayable == 1
    assert await dead_letters.discard(DeadFilter(id=dead.id)) == 1


async def _dead(
    make_processor: Callable[..., Processor], place: Place, count: int, *, prefix: str = "m", **settings: Any
) -> DeadLetters:
    """Dead-letter this many messages, half of each kind."""
    processor = make_processor(concurrency=20, **settings)
    processor.handler("even")(_raising(KeyError("x")))
    processor.handler("odd")(_raising(ValueError("x")))
    kept = settings.get("dead_letters_max", count)
    started = await place.dead()
    policy = RetryPolicy(no_retry_for=(Exception,))
    processor._handlers = {
        event: type(one)(event=event, function=one.function, retry=policy) for event, one in processor._handlers.items()
    }
    async with processor:
        await processor.emit_many(
            [
                NewMessage("odd" if number % 2 else "even", {"n": number}, id=f"{prefix}{number}")
                for number in range(count)
            ]
        )
        await wait_until_async(lambda: _is(place.pending, 0))
        if "dead_letters_max_age_s" not in settings:
            await wait_until_async(lambda: _is(place.dead, started + kept))
        await wait_until_async(lambda: processor.health().streams[place.keys.stream].failed == count)
    dead_letters: DeadLetters = make_processor().dead_letters()
    return dead_letters


def _raising(error: Exception) -> Any:
    async def handler(ctx: JobContext) -> None:
        raise type(error)(*error.args)  # a new one each time: a raised exception keeps all its tracebacks

    return handler


def _fail_deep(value: str) -> None:
    raise ValueError(value)


async def _is(question: Any, answer: int) -> bool:
    try:
        return bool(await question() == answer)
    except redis.ResponseError:
        return False
