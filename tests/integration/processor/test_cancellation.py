"""A cancellation of a call is never swallowed, at any iteration of the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.integration.conftest import Call
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.processor import DeadFilter, DeadLetters, Emitter, JobContext, Processor, RetryPolicy
from conquiet.redis_transport.client import clone_async
from conquiet.runtime import RuntimeSettings
from conquiet.testing import wait_until_async


@pytest.mark.parametrize("call", ["emit", "replay"])
async def test_a_cancelled_call_ends_at_whatever_turn_of_the_loop(
    client: RawAsyncRedis,
    stream: str,
    call: str,
    turns_that_swallow_a_cancellation: Callable[[Call], Awaitable[list[int]]],
) -> None:
    """redis-py and Python 3.11 swallow it in one iteration out of a few: the task would continue with its next call."""
    own = clone_async(client)
    emitter, dead_letters = Emitter(own, stream), DeadLetters(own, stream)
    await emitter.emit("warm.up")

    async def once() -> None:
        if call == "emit":
            await emitter.emit("some.event", id="again", delay_s=60)
        else:
            await dead_letters.replay(DeadFilter())

    went_on = await turns_that_swallow_a_cancellation(once)

    await own.aclose()
    assert went_on == []


async def test_a_task_that_cleans_up_after_a_cancellation_may_call(client: RawAsyncRedis, stream: str) -> None:
    own = clone_async(client)
    emitter = Emitter(own, stream)

    async def clean_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return (await emitter.emit("cleaned.up", id="once")).id
        raise AssertionError

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()

    assert await task == "once"
    await own.aclose()


@pytest.mark.parametrize("limit_s", [None, 60.0])
async def test_a_handler_that_awaits_a_cancelled_task_has_failed(
    make_processor: Callable[..., Processor], place: Place, limit_s: float | None
) -> None:
    processor = make_processor()
    runs: list[int] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(0.01, max_attempts=2), timeout_s=limit_s)
    async def pay(ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    async with processor:
        await processor.emit("pay")
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert runs == [1, 2]
    assert dead.record.reason == "attempts_exhausted"
    assert dead.record.error_type.endswith("HandlerCancelledError")


async def test_a_handler_that_a_stop_breaks_off_has_not_failed(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor(runtime=RuntimeSettings(grace_s=0.0))
    begun = asyncio.Event()

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with processor:
        await processor.emit("pay")
        await begun.wait()

    assert (await place.dead(), await place.waiting(), await place.pending()) == (0, 0, 1)


async def _is(found: Callable[[], Any], wanted: int) -> bool:
    return bool(await found() == wanted)
