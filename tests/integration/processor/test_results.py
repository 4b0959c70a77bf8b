"""Waiting for a job's result, seeing its progress, and ending subscriptions."""

import asyncio
from collections.abc import Callable

import pytest
from tests.redis_clients import RawAsyncRedis

from conquiet.errors import ConfigurationError, JobCancelledError, JobFailedError, JobTimeoutError
from conquiet.management import JobAdmin
from conquiet.processor import JobContext, JobHandle, NewMessage, Processor, RetryPolicy, SyncJobContext
from conquiet.processor.keys import Keys
from conquiet.testing import wait_until_async

Make = Callable[..., Processor]


async def test_a_result_comes_back_through_all_attempts(
    make_processor: Make, client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor()

    @processor.handler("add", retry=RetryPolicy.fixed(0.02, max_attempts=3))
    async def add(ctx: JobContext) -> dict[str, int]:
        if ctx.attempt < 2:
            raise LookupError
        return {"sum": ctx.data["a"] + ctx.data["b"]}

    async with processor:
        found = await processor.emit_and_wait("add", {"a": 1, "b": 2}, id="m", timeout_s=60)
        again = await processor.emit_and_wait(
            "add", {"a": 5, "b": 5}, id="m", timeout_s=60
        )  # an id known: not run again
        later = await processor.job("m").result(timeout_s=60)

    assert found == again == later == {"sum": 3}
    assert 0 < await client.pttl(keys.result("m")) <= 3_600_000


async def test_a_message_that_is_waited_for_has_its_headers(make_processor: Make) -> None:
    processor = make_processor()

    @processor.handler("tenant")
    async def tenant(ctx: JobContext) -> str:
        return ctx.headers["tenant"]

    async with processor:
        assert await processor.emit_and_wait("tenant", headers={"tenant": "blue"}, timeout_s=60) == "blue"


async def test_many_wait_for_one_job_before_and_after_its_end(make_processor: Make) -> None:
    processor = make_processor()
    go = asyncio.Event()

    @processor.handler("add")
    async def add(_: JobContext) -> str:
        await go.wait()
        return "done"

    async with processor:
        await processor.emit_many([NewMessage("add", id="m", keep_result_s=60)])
        waiting = [asyncio.create_task(processor.job("m").result(timeout_s=60)) for _ in range(5)]
        go.set()
        results = await asyncio.gather(*waiting)

    assert results == ["done"] * 5


async def test_dead_cancelled_and_slow_jobs_each_have_their_error(
    make_processor: Make, client: RawAsyncRedis, stream: str
) -> None:
    processor = make_processor()

    @processor.handler("dies")
    async def dies(_: JobContext) -> None:
        raise LookupError("DE02")

    async with processor:
        with pytest.raises(JobFailedError, match="is dead: LookupError") as dead:
            await processor.emit_and_wait("dies", timeout_s=60)
        await processor.emit_many([NewMessage("dies", id="later", delay_s=600, keep_result_s=60)])
        with pytest.raises(JobTimeoutError, match="has not ended within 0 s"):
            await processor.job("later").result(timeout_s=0)
        await JobAdmin(client, stream).cancel("later")
        with pytest.raises(JobCancelledError):
            await processor.job("later").result(timeout_s=60)

    assert "DE02" not in str(dead.value)


async def test_nothing_is_kept_of_jobs_that_nothing_waits_for(make_processor: Make, client: RawAsyncRedis) -> None:
    processor = make_processor()

    @processor.handler("add")
    async def add(_: JobContext) -> int:
        return 3

    async with processor:
        await processor.emit("add", id="m")
        await wait_until_async(lambda: processor.health().streams[processor._streams[0]].succeeded == 1)

    assert await client.keys("*result*") == []


async def test_a_value_that_is_no_json_is_left_out(make_processor: Make, caplog: pytest.LogCaptureFixture) -> None:
    processor = make_processor()

    @processor.handler("add")
    async def add(_: JobContext) -> object:
        return object()

    async with processor:
        found = await processor.emit_and_wait("add", id="m", timeout_s=60)

    assert found is None
    assert "result of job m of event add is not kept" in caplog.text


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_progress_is_seen_while_the_job_runs(
    make_processor: Make, client: RawAsyncRedis, stream: str, kind: str
) -> None:
    processor = make_processor()
    go = asyncio.Event()

    if kind == "coroutine":

        @processor.handler("copy")
        async def copy(ctx: JobContext) -> None:
            await ctx.progress(0.4, "page 2 of 5")
            await ctx.emit_many([NewMessage("other", id="a"), NewMessage("other", id="b")])
            await go.wait()
    else:

        @processor.handler("copy")
        def copy_in_thread(ctx: SyncJobContext) -> None:
            ctx.progress(0.4, "page 2 of 5")
            ctx.emit_many([NewMessage("other", id="a"), NewMessage("other", id="b")])

    @processor.handler("other")
    async def other(_: JobContext) -> None:
        return

    async with processor:
        await processor.emit("copy", id="m")
        await wait_until_async(lambda: _has_progress(processor.job("m")))
        progress = await processor.job("m").progress()
        shown = (await JobAdmin(client, stream).show("m")).progress
        go.set()
        await wait_until_async(lambda: processor.health().streams[stream].succeeded == 3)
        nothing = await processor.job("a").progress()

    assert progress is not None
    assert (progress.fraction, progress.text) == (0.4, "page 2 of 5")
    assert shown is not None
    assert (shown.fraction, shown.text) == (0.4, "page 2 of 5")
    assert nothing is None


async def test_a_progress_beyond_its_range_is_refused(make_processor: Make) -> None:
    processor = make_processor()
    errors: list[BaseException] = []

    @processor.handler("copy")
    async def copy(ctx: JobContext) -> None:
        for wrong in (1.5, -0.1, True, "half"):
            try:
                await ctx.progress(wrong)  # type: ignore[arg-type]
            except ConfigurationError as error:
                errors.append(error)

    async with processor:
        await processor.emit("copy")
        await wait_until_async(lambda: processor.health().streams[processor._streams[0]].succeeded == 1)

    assert len(errors) == 4


async def test_a_subscription_ends_with_off(make_processor: Make) -> None:
    processor = make_processor()
    seen: list[str] = []

    def first(_: object) -> None:
        seen.append("first")

    async def second(_: object) -> None:
        seen.append("second")

    def before(_: object) -> None:
        seen.append("before")

    @processor.handler("pay")
    async def pay(_: JobContext) -> None:
        return

    processor.on("succeeded", before)
    processor.off("succeeded", before)
    async with processor:
        processor.on("succeeded", first)
        processor.on("succeeded", second)
        await processor.emit("pay")
        await wait_until_async(lambda: sorted(seen) == ["first", "second"])
        processor.off("succeeded", first)
        processor.off("succeeded", second)
        await processor.emit("pay")
        await wait_until_async(lambda: processor.health().streams[processor._streams[0]].succeeded == 2)
        with pytest.raises(ConfigurationError, match="not subscribed"):
            processor.off("succeeded", first)

    assert sorted(seen) == ["first", "second"]


async def _has_progress(job: JobHandle) -> bool:
    return await job.progress() is not None


async def test_a_member_of_a_batch_ends_without_a_value(make_processor: Make) -> None:
    processor = make_processor()

    @processor.handler("add", batch=10)
    async def add(batch: list[JobContext]) -> None:
        assert batch

    async with processor:
        assert await processor.emit_and_wait("add", timeout_s=60) is None


@pytest.mark.parametrize("value", [{"sum": 3}, [1, "a", None], True])
async def test_the_return_value_of_a_plain_function_is_its_result(make_processor: Make, value: object) -> None:
    processor = make_processor()

    @processor.handler("add")
    def add(_: SyncJobContext) -> object:
        return value

    async with processor:
        assert await processor.emit_and_wait("add", timeout_s=60) == value
