"""A cancelled job has no effect, and a job that had its effect is not cancelled."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio

from conquiet.errors import JobCancelledError, PayloadError
from conquiet.management import JobAdmin, JobChange
from conquiet.processor import (
    JobContext,
    JobState,
    Processor,
    ProcessorSettings,
    RateLimit,
    RetryPolicy,
    SyncJobContext,
)
from conquiet.processor.keys import keys_of
from conquiet.testing import wait_until_async

Make = Callable[..., Processor]


@pytest.fixture
async def make(aio: redis.asyncio.Redis, stream: str) -> AsyncIterator[Make]:
    made: list[Processor] = []

    def new(**options: Any) -> Processor:
        settings = ProcessorSettings(job_ttl_s=600)
        made.append(Processor(aio, [stream], settings=settings, **{"concurrency": 4} | options))
        return made[-1]

    yield new
    for processor in made:
        await processor.close()


@pytest.fixture
def jobs(aio: redis.asyncio.Redis, stream: str) -> JobAdmin:
    return JobAdmin(aio, stream)


@pytest.mark.parametrize("place", ["waiting", "delayed"])
async def test_a_job_that_waits_is_removed_and_never_runs(make: Make, jobs: JobAdmin, stream: str, place: str) -> None:
    processor = make()
    ran: list[str] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        ran.append(ctx.id)

    for job in ("a", "b"):
        await processor.emit("pay", id=job, delay_s=0.2 if place == "delayed" else None)

    report = await jobs.cancel("a")
    async with processor:
        await wait_until_async(lambda: ran == ["b"])

    assert (report.change, report.phase) == (JobChange.CANCELLED, place)
    assert ran == ["b"]
    assert (await jobs.show("a")).phase == "cancelled"
    known = await processor.jobs.get(stream, "a")
    assert known is not None
    assert known.state is JobState.CANCELLED


async def test_a_running_coroutine_is_cancelled_and_not_retried(make: Make, jobs: JobAdmin, stream: str) -> None:
    processor = make()
    started = asyncio.Event()
    ended: list[str] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(0.01, max_attempts=3))
    async def pay(_: JobContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async with processor:
        await processor.emit("pay", id="m")
        await started.wait()
        report = await jobs.cancel("m", timeout_s=60)
        story = await jobs.show("m")

    assert (report.change, ended) == (JobChange.CANCELLED, ["ended"])
    assert (story.phase, story.places) == ("cancelled", ())
    known = await processor.jobs.get(stream, "m")
    assert known is not None
    assert known.state is JobState.CANCELLED


async def test_a_thread_sees_the_request_and_decides(make: Make, jobs: JobAdmin) -> None:
    """Raising cancels the job; returning means that it had its effect."""
    processor = make()
    started = threading.Semaphore(0)

    @processor.handler("pay")
    def pay(ctx: SyncJobContext) -> None:
        started.release()
        while not ctx.cancelled:
            threading.Event().wait(0.01)
        if ctx.data["raises"]:
            ctx.raise_if_cancelled()

    async with processor:
        for name in ("raises", "returns"):
            await processor.emit("pay", {"raises": name == "raises"}, id=name)
            await asyncio.to_thread(started.acquire)
        raised, returned = [await jobs.cancel(name, timeout_s=60) for name in ("raises", "returns")]

    assert (raised.change, returned.change) == (JobChange.CANCELLED, JobChange.FINISHED)


async def test_a_handler_that_swallows_the_cancellation_had_its_effect(make: Make, jobs: JobAdmin) -> None:
    processor = make()
    started = asyncio.Event()

    @processor.handler("pay")
    async def pay(_: JobContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async with processor:
        await processor.emit("pay", id="m")
        await started.wait()
        report = await jobs.cancel("m", timeout_s=60)
        started.clear()
        await processor.emit("pay", id="n")  # the worker that ran it still works
        await asyncio.wait_for(started.wait(), 60)
        again = await jobs.cancel("n", timeout_s=60)  # or the stop waits for it, for the whole grace period

    assert (report.change, again.change) == (JobChange.FINISHED, JobChange.FINISHED)


async def test_a_request_for_a_finished_job_hits_no_later_one(make: Make, jobs: JobAdmin) -> None:
    """A request names an entry. The next job with the same id is another entry."""
    processor = make()
    runs: list[str] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        runs.append(ctx.id)

    async with processor:
        await processor.emit("pay", id="m")
        await wait_until_async(lambda: runs == ["m"])
        late = await jobs.cancel("m")
        await processor.emit("pay", {"again": 1}, id="n")
        await wait_until_async(lambda: runs == ["m", "n"])

    assert late.change is JobChange.GONE


async def test_a_job_cannot_escape_into_its_next_attempt(
    make: Make, jobs: JobAdmin, aio: redis.asyncio.Redis, stream: str
) -> None:
    """The request comes while the handler is about to fail, and the worker has not polled since."""
    processor = make()
    keys = keys_of(stream)
    runs: list[int] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(0.01, max_attempts=3))
    async def pay(ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        await aio.hset(keys.cancel, f"{ctx.delivery.id} processor", ctx.id)  # as the script does, without a wake-up
        raise LookupError

    async with processor:
        await processor.emit("pay", id="m")
        await wait_until_async(lambda: _is_cancelled(jobs, "m"))
        left = await aio.hlen(keys.cancel)

    assert (runs, left, await aio.zcard(keys.delayed), await aio.xlen(keys.dead)) == ([1], 0, 0, 0)


async def test_a_job_cancelled_for_one_group_is_handled_by_another(
    make: Make, aio: redis.asyncio.Redis, stream: str
) -> None:
    """The entry cannot be deleted, so the first group's worker decides when it reads it."""
    mail, audit = make(group="mail"), make(group="audit")
    ran: list[str] = []
    for name, processor in (("mail", mail), ("audit", audit)):

        async def note(_: JobContext, name: str = name) -> None:
            ran.append(name)

        processor.handler("pay")(note)
        await aio.xgroup_create(stream, name, "0", mkstream=True)
    await mail.emit("pay", id="m")
    jobs = JobAdmin(aio, stream, group="mail")

    asked = await jobs.cancel("m", timeout_s=0)
    async with mail, audit:
        await wait_until_async(lambda: _is_cancelled(jobs, "m"))
        await wait_until_async(lambda: ran == ["audit"])

    assert asked.change is JobChange.REQUESTED
    assert ran == ["audit"]


async def test_a_request_outlives_the_worker_that_had_the_job(
    make: Make, jobs: JobAdmin, aio: redis.asyncio.Redis, stream: str
) -> None:
    """The dead worker has read the job and is gone; the next owner finds the request before it runs anything."""
    await aio.xgroup_create(stream, "processor", "0", mkstream=True)
    processor = make(consumer_id="next")
    ran: list[str] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        ran.append(ctx.id)

    await processor.emit("pay", id="m")
    await aio.xreadgroup("processor", "next", {stream: ">"})  # an earlier life of the worker, killed since
    asked = await jobs.cancel("m", timeout_s=0)
    async with processor:
        await wait_until_async(lambda: _is_cancelled(jobs, "m"))

    assert (asked.change, ran) == (JobChange.REQUESTED, [])


async def test_paused_and_rate_limited_jobs_are_cancelled_too(make: Make, jobs: JobAdmin) -> None:
    processor = make()
    ran: list[str] = []

    async def note(ctx: JobContext) -> None:
        ran.append(ctx.id)

    processor.handler("paused")(note)
    processor.handler("slow", rate=RateLimit(1, per_s=3600))(note)
    await processor.pause(event="paused")
    async with processor:
        for job, event in (("p", "paused"), ("first", "slow"), ("second", "slow")):
            await processor.emit(event, id=job)
        await wait_until_async(lambda: _is_in(jobs, "p", "parked"))
        await wait_until_async(lambda: _is_in(jobs, "second", "delayed"))
        reports = [await jobs.cancel(job) for job in ("p", "second")]
        await processor.resume(event="paused")
        await processor.emit("paused", id="q")
        await wait_until_async(lambda: "q" in ran)

    assert [one.change for one in reports] == [JobChange.CANCELLED] * 2
    assert sorted(ran) == ["first", "q"]


async def test_a_delayed_job_runs_now_and_another_is_rescheduled(
    make: Make, jobs: JobAdmin, aio: redis.asyncio.Redis, stream: str
) -> None:
    processor = make()
    ran: list[tuple[str, int]] = []

    @processor.handler("pay", retry=RetryPolicy.fixed(3_600, max_attempts=2))
    async def pay(ctx: JobContext) -> None:
        ran.append((ctx.id, ctx.attempt))
        if ctx.attempt == 1:
            raise LookupError

    await processor.emit("pay", id="now", delay_s=3_600)
    await processor.emit("pay", id="later", delay_s=3_600)
    async with processor:
        first = await jobs.run_now("now")
        await wait_until_async(lambda: _is_in(jobs, "now", "retrying"))
        again = await jobs.run_now("now")
        later = await jobs.reschedule("later", delay_s=7_200)
        due_ms = (await jobs.show("later")).places[0].due_ms
        await wait_until_async(lambda: len(ran) == 2)
        refused = await jobs.run_now("unknown")

    now_ms = int((await aio.time())[0]) * 1000
    assert ran == [("now", 1), ("now", 2)]
    assert [one.change for one in (first, again, later)] == [JobChange.MOVED] * 3
    assert refused.change is JobChange.GONE
    assert due_ms is not None
    assert 7_000_000 < due_ms - now_ms <= 7_201_000  # now_ms is in whole seconds


async def test_a_dead_job_is_retried_with_other_data_once(make: Make, jobs: JobAdmin) -> None:
    processor = make()
    seen: list[dict[str, Any]] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append(ctx.data)
        if ctx.data["iban"] == "wrong":
            raise LookupError

    async with processor:
        await processor.emit("pay", {"iban": "wrong"}, id="m")
        await wait_until_async(lambda: _is_in(jobs, "m", "dead"))
        dead_id = (await jobs.show("m")).places[0].place
        refused = await jobs.cancel("m")
        with pytest.raises(PayloadError, match="at iban") as caught:
            await jobs.edit_and_retry(dead_id, {"iban": float("inf")})
        changes = await asyncio.gather(*(jobs.edit_and_retry(dead_id, {"iban": "DE02"}) for _ in range(5)))
        await wait_until_async(lambda: len(seen) == 2)

    assert refused.change is JobChange.REFUSED
    assert caught.value.path == "iban"
    assert sorted(one.change for one in changes) == ["gone"] * 4 + ["moved"]
    assert seen == [{"iban": "wrong"}, {"iban": "DE02"}]


async def _is_cancelled(jobs: JobAdmin, job_id: str) -> bool:
    return (await jobs.show(job_id)).phase == "cancelled"


async def _is_in(jobs: JobAdmin, job_id: str, phase: str) -> bool:
    return (await jobs.show(job_id)).phase == phase


def test_the_error_of_a_cancelled_job_names_it() -> None:
    error = JobCancelledError("the job was cancelled", event="pay", job_id="m")

    assert (error.event, error.job_id) == ("pay", "m")
