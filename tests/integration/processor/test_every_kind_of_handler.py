"""Rules of the policy layer, checked for every kind of handler: awaited, in a thread, and both with batches."""

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.processor import Processor, RetryPolicy, SyncJobContext
from conquiet.testing import wait_until_async

KINDS = ("async", "plain", "async batch", "plain batch")
SOON = RetryPolicy.fixed(0.01, max_attempts=3)


def register(processor: Processor, kind: str, work: Callable[[Any], None], **options: Any) -> None:
    """Register a handler of event ``pay`` that calls ``work`` with the context of each message."""

    async def awaited(given: Any) -> None:
        for ctx in given if isinstance(given, list) else [given]:
            work(ctx)

    def plain(given: Any) -> None:
        for ctx in given if isinstance(given, list) else [given]:
            work(ctx)

    if "batch" in kind:
        options |= {"batch": 5, "within_s": 0.01}
    processor.handler("pay", **options)(awaited if kind.startswith("async") else plain)


def note(times: list[float], _ctx: Any) -> None:
    times.append(time.time())


async def settled(place: Place) -> bool:
    return bool(await place.pending() == 0 and await place.waiting() == 0)


@pytest.mark.spec("CM-006.3", "CM-002.6")
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_handler_is_retried_by_a_separate_message(
    make_processor: Callable[..., Processor], place: Place, kind: str
) -> None:
    processor = make_processor()
    runs: list[tuple[int, str]] = []

    def work(ctx: SyncJobContext) -> None:
        runs.append((ctx.attempt, ctx.delivery.id))
        if ctx.attempt < 3:
            raise ConnectionError

    register(processor, kind, work, retry=SOON)
    async with processor:
        await processor.emit("pay", {"n": 1}, id="m1")
        await wait_until_async(lambda: len(runs) == 3)
        await wait_until_async(lambda: settled(place))

    assert [attempt for attempt, _ in runs] == [1, 2, 3]
    assert len({entry for _, entry in runs}) == 3
    assert await place.attempts() == [("m1", 1), ("m1", 2), ("m1", 3)]
    assert await place.dead() == 0


@pytest.mark.spec("CM-006.4", "CM-002.7")
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_handler_without_attempts_left_dead_letters_with_the_error(
    make_processor: Callable[..., Processor], place: Place, kind: str
) -> None:
    processor = make_processor()

    def work(ctx: SyncJobContext) -> None:
        raise LookupError("no account of jane@example.org")

    register(processor, kind, work, retry=RetryPolicy.fixed(0.01, max_attempts=2))
    async with processor:
        await processor.emit("pay", {"iban": "DE02"}, id="m")
        await wait_until_async(lambda: _is(place.dead, 1))
        await wait_until_async(lambda: settled(place))
        (dead,) = (await processor.dead_letters().list()).items

    record = dead.record
    assert (record.reason, record.event, record.id, record.attempts) == ("attempts_exhausted", "pay", "m", 2)
    assert (record.error_type, record.error) == ("LookupError", "")
    assert record.payload is not None
    assert record.payload["data"] == {"iban": "DE02"}
    assert await place.attempts() == [("m", 1), ("m", 2)]


@pytest.mark.spec("CM-006.2", "CM-002.5")
async def test_no_kind_of_handler_gets_a_message_before_its_time(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, stream: str
) -> None:
    """All kinds concurrently, each with a separate stream: the wait is longer than any delay of a message."""
    calls: dict[str, list[float]] = {kind: [] for kind in KINDS}
    streams = {kind: f"{stream}-{kind.replace(' ', '-')}" for kind in KINDS}
    async with contextlib.AsyncExitStack() as stack:
        for kind in KINDS:
            processor = make_processor(streams=[streams[kind]])
            register(processor, kind, partial(note, calls[kind]))
            await stack.enter_async_context(processor)
        due_ms = int(time.time() * 1000) + 4_000
        data = json.dumps({"v": 1, "event": "pay", "id": "m", "delay_until_ms": due_ms})
        for name in streams.values():
            await client.xadd(name, {"data": data})
        await wait_until_async(lambda: all(calls.values()))

    for kind, name in streams.items():
        assert len(calls[kind]) == 1, kind
        assert calls[kind][0] >= due_ms / 1000, kind
        assert await client.xlen(name) == 2, kind
        assert (await client.xpending(name, "processor"))["pending"] == 0, kind


async def _is(ask: Callable[[], Any], number: int) -> bool:
    return bool(await ask() == number)
