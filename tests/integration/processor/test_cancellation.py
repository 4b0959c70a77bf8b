"""A cancellation of a call is never swallowed, at whatever turn of the event loop it comes."""

import asyncio
from typing import Any

import pytest
import redis.asyncio

from conquiet.processor import DeadFilter, DeadLetters, Emitter
from conquiet.queue.client import clone_async


@pytest.mark.parametrize("call", ["emit", "replay"])
async def test_a_cancelled_call_ends_at_whatever_turn_of_the_loop(
    client: redis.asyncio.Redis, stream: str, call: str, turns_that_swallow_a_cancellation: Any
) -> None:
    """redis-py and Python 3.11 swallow it in one turn out of a few: the task would go on with its next call."""
    own = clone_async(client)
    emitter, letters = Emitter(own, stream), DeadLetters(own, stream)
    await emitter.emit("warm.up")

    async def once() -> None:
        if call == "emit":
            await emitter.emit("some.event", id="again", delay=60)
        else:
            await letters.replay(DeadFilter())

    went_on = await turns_that_swallow_a_cancellation(once)

    await own.aclose()
    assert went_on == []


async def test_a_task_that_cleans_up_after_a_cancellation_may_call(client: redis.asyncio.Redis, stream: str) -> None:
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
