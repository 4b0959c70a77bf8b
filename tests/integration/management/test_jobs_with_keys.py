"""If an operator removes a job with a key, the next job of the key continues."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from conquiet.management.jobs.admin import JobAdmin
from conquiet.management.jobs.control import JobChange
from conquiet.management.jobs.models import JobPhase
from conquiet.processor import JobContext, KeyOrder, NewMessage, Processor, ProcessorSettings, RetryPolicy
from conquiet.redis_transport.client import clone_async
from conquiet.testing import wait_until_async


class Place:
    """A processor with a handler that records its runs, and the operator's view of its stream."""

    def __init__(self, client: redis.asyncio.Redis, stream: str) -> None:
        self.processor = Processor(client, [stream], concurrency=4, settings=ProcessorSettings(refresh_s=0.1))
        self.jobs = JobAdmin(client, stream)
        self.order = KeyOrder(client, stream)
        self.ran: list[str] = []

        @self.processor.handler("pay", retry=RetryPolicy.fixed(3_600, max_attempts=2))
        async def pay(ctx: JobContext) -> None:
            self.ran.append(ctx.id)
            if ctx.data.get("fails") and ctx.attempt == 1:
                raise ValueError
            if ctx.data.get("hangs"):
                await asyncio.Event().wait()

    async def emit(self, **first: Any) -> None:
        await self.processor.emit_many(
            [NewMessage("pay", first, id="one", key="a"), NewMessage("pay", {}, id="two", key="a")]
        )


@pytest.fixture
async def place(redis_url: str, key_prefix: str) -> AsyncIterator[Place]:
    client = clone_async(redis.asyncio.Redis.from_url(redis_url, protocol=2))
    place = Place(client, f"{key_prefix}payments")
    yield place
    await place.processor.close()
    await client.aclose()


async def test_cancelling_a_waiting_job_lets_the_next_of_its_key_run(place: Place) -> None:
    await place.emit()

    assert (await place.jobs.cancel("one")).change is JobChange.CANCELLED
    async with place.processor:
        await wait_until_async(lambda: place.ran == ["two"])


async def test_cancelling_a_retrying_job_lets_the_next_of_its_key_run(place: Place) -> None:
    await place.emit(fails=True)
    async with place.processor:

        async def is_cancelled() -> bool:
            return (await place.jobs.cancel("one")).change is JobChange.CANCELLED

        await wait_until_async(lambda: place.ran == ["one"])
        await wait_until_async(is_cancelled)
        await wait_until_async(lambda: place.ran == ["one", "two"])


async def test_cancelling_a_running_job_lets_the_next_of_its_key_run(place: Place) -> None:
    await place.emit(hangs=True)
    async with place.processor:
        await wait_until_async(lambda: place.ran == ["one"])
        assert (await place.jobs.cancel("one", timeout_s=30)).change is JobChange.CANCELLED
        await wait_until_async(lambda: place.ran == ["one", "two"])


async def test_a_retrying_job_that_runs_now_keeps_its_turn(place: Place) -> None:
    await place.emit(fails=True)
    async with place.processor:

        async def is_moved() -> bool:
            return (await place.jobs.run_now("one")).change is JobChange.MOVED

        await wait_until_async(lambda: place.ran == ["one"])
        await wait_until_async(is_moved)
        await wait_until_async(lambda: place.ran == ["one", "one", "two"])


async def test_a_reset_leaves_no_key_behind(place: Place) -> None:
    await place.emit(fails=True)
    async with place.processor:

        async def is_retrying() -> bool:
            return (await place.jobs.reset(dry_run=True)).delayed == 1

        await wait_until_async(is_retrying)
        stream = place.jobs._stream
        report = await place.jobs.reset(confirm=stream)
        assert (report.delayed, report.behind) == (1, 1)
        order = await place.order.report()
        assert (order.holders, order.waiting) == (0, 0)
        await place.processor.emit("pay", id="three", key="a")
        await wait_until_async(lambda: place.ran == ["one", "three"])


async def test_a_job_behind_others_of_its_key_is_listed_and_cancelled(place: Place) -> None:
    await place.processor.emit_many([NewMessage("pay", id=f"job-{number}", key='say "a"') for number in range(5)])

    listed = await place.jobs.list(JobPhase.BEHIND, limit=3)
    rest = await place.jobs.list(JobPhase.BEHIND, limit=3, cursor=listed.cursor)
    assert [job.id for job in (*listed.jobs, *rest.jobs)] == [f"job-{number}" for number in range(1, 5)]
    assert (await place.jobs.show("job-3")).phase is JobPhase.BEHIND
    assert (await place.jobs.cancel("job-3")).change is JobChange.CANCELLED
    assert (await place.order.report()).waiting == 3
    async with place.processor:
        await wait_until_async(lambda: place.ran == ["job-0", "job-1", "job-2", "job-4"])
    assert (await place.order.report()).waiting == 0
