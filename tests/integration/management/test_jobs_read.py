"""Jobs of a stream as an operator sees them: pages of each phase, filters, and the story of one job."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from conquiet.errors import ConfigurationError
from conquiet.management import JobAdmin, JobFilter, JobPhase
from conquiet.management.jobs import reader
from conquiet.processor import JobContext, NewMessage, Processor, ProcessorSettings, RetryPolicy
from conquiet.testing import wait_until_async


@pytest.fixture
async def processor(aio: redis.asyncio.Redis, stream: str) -> AsyncIterator[Processor]:
    made = Processor(aio, [stream], concurrency=4, settings=ProcessorSettings(job_ttl_s=600))
    yield made
    await made.close()


async def test_each_phase_lists_its_jobs_and_no_other(
    aio: redis.asyncio.Redis, processor: Processor, stream: str
) -> None:
    jobs = JobAdmin(aio, stream)
    go = asyncio.Event()

    @processor.handler("slow")
    async def slow(_: JobContext) -> None:
        await go.wait()

    @processor.handler("fails", retry=RetryPolicy.fixed(600, max_attempts=2))
    async def fails(_: JobContext) -> None:
        raise LookupError

    @processor.handler("dies")
    async def dies(_: JobContext) -> None:
        raise LookupError

    await processor.emit("slow", id="later", delay_s=600)
    async with processor:
        await processor.pause(event="paused")
        for event in ("slow", "fails", "dies"):
            await processor.emit(event, id=event)
        await wait_until_async(lambda: _lists(jobs, JobPhase.RETRYING, "fails"))
        await wait_until_async(lambda: _lists(jobs, JobPhase.DEAD, "dies"))
        running = (await jobs.list("running")).jobs
        go.set()
    await processor.emit("slow", id="next")

    assert [(job.id, job.deliveries, job.consumer) for job in running] == [("slow", 1, processor.consumer_id)]
    assert await _ids(jobs, JobPhase.DELAYED) == ["later"]
    assert await _ids(jobs, JobPhase.RETRYING) == ["fails"]
    assert await _ids(jobs, JobPhase.WAITING) == ["next"]
    assert await _ids(jobs, JobPhase.DEAD) == ["dies"]
    assert await _ids(jobs, JobPhase.RUNNING) == []
    assert await _ids(jobs, JobPhase.DEAD, JobFilter(error="KeyError")) == []
    assert await _ids(jobs, JobPhase.DEAD, JobFilter(error="LookupError", event="dies")) == ["dies"]


@pytest.mark.parametrize("delay_s", [None, 600.0])
async def test_pages_of_any_size_show_each_job_once_in_order(
    aio: redis.asyncio.Redis, processor: Processor, stream: str, delay_s: float | None
) -> None:
    """Jobs that are due at one time share a score, so the cursor counts inside of it."""
    at = None if delay_s is None else 4_000_000_000.0
    wanted = [f"job-{number:03}" for number in range(25)]
    await processor.emit_many([NewMessage("pay", {}, id=one, at=at) for one in wanted])
    jobs = JobAdmin(aio, stream)

    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await jobs.list("waiting" if delay_s is None else "delayed", cursor=cursor, limit=4)
        assert len(page.jobs) <= 4
        seen += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            break

    assert sorted(seen) == wanted
    assert delay_s is not None or seen == wanted


async def test_one_page_reads_no_more_than_its_limit_of_messages(
    aio: redis.asyncio.Redis, processor: Processor, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SCAN_LIMIT", 10)
    await processor.emit_many([NewMessage("pay") for _ in range(25)] + [NewMessage("rare", id="x")])
    jobs = JobAdmin(aio, stream)

    first = await jobs.list("waiting", JobFilter(event="rare"))
    found = await _ids(jobs, JobPhase.WAITING, JobFilter(event="rare"))

    assert (first.jobs, first.scanned, first.cursor is not None) == ((), 10, True)
    assert found == ["x"]


async def test_data_is_shown_only_on_request_and_never_in_a_repr(
    aio: redis.asyncio.Redis, processor: Processor, stream: str
) -> None:
    await processor.emit("pay", {"iban": "DE02"}, id="m")
    jobs = JobAdmin(aio, stream)

    plain = (await jobs.list("waiting")).jobs[0]
    shown = (await jobs.list("waiting", with_data=True)).jobs[0]

    assert (plain.data, shown.data) == (None, {"iban": "DE02"})
    assert "DE02" not in repr(plain) + repr(shown) + str(plain.as_dict())


async def test_the_story_of_a_job_names_its_place_and_its_times(
    aio: redis.asyncio.Redis, processor: Processor, stream: str
) -> None:
    @processor.handler("dies")
    async def dies(_: JobContext) -> None:
        raise LookupError

    jobs = JobAdmin(aio, stream)
    await processor.emit("dies", id="later", delay_s=600)
    async with processor:
        await processor.emit("dies", id="dead")
        await wait_until_async(lambda: _lists(jobs, JobPhase.DEAD, "dead"))
    await processor.emit("dies", id="next")

    dead, later, following, unknown = [await jobs.show(one) for one in ("dead", "later", "next", "other")]

    assert [one.phase for one in (dead, later, following, unknown)] == ["dead", "delayed", "waiting", None]
    assert dead.error_type == "LookupError"
    assert "LookupError" in dead.traceback
    assert set(dead.times_ms) >= {"waiting", "running", "dead"}
    assert later.places[0].due_ms is not None
    assert later.complete
    assert following.places[0].place


async def test_a_search_that_ends_early_says_so(aio: redis.asyncio.Redis, processor: Processor, stream: str) -> None:
    await processor.emit_many([NewMessage("pay") for _ in range(1_200)] + [NewMessage("pay", id="last")])
    jobs = JobAdmin(aio, stream)

    short = await jobs.show("last", search_limit=500)
    whole = await jobs.show("last")

    assert (short.phase, short.complete) == (None, False)
    assert (whole.phase, whole.complete) == ("waiting", True)


@pytest.mark.parametrize(
    ("facts", "phase"), [({"delay_s": 600.0}, "delayed"), ({"key": "a"}, "behind"), ({}, "parked")]
)
async def test_a_search_goes_on_until_the_end_of_each_place(
    aio: redis.asyncio.Redis, processor: Processor, stream: str, facts: dict[str, Any], phase: str
) -> None:
    """The server searches 500 messages at a time."""
    jobs = JobAdmin(aio, stream)

    @processor.handler("pay")
    async def pay(_: JobContext) -> None: ...

    last = NewMessage("pay", id="last", **facts)
    await processor.pause(event="pay")
    await processor.emit_many([NewMessage("pay", **facts) for _ in range(1_100)] + [last])
    async with processor:
        await wait_until_async(lambda: _lists(jobs, JobPhase(phase), "last"))
        found = await jobs.show("last")
        missing = await jobs.show("other")

    assert (found.phase, found.complete) == (phase, True)
    assert missing.complete
    assert missing.scanned >= 1_100


async def test_a_job_without_an_id_is_found_by_its_entry(aio: redis.asyncio.Redis, stream: str) -> None:
    entry_id: Any = await aio.xadd(stream, {"data": '{"v": 1, "event": "pay"}'})
    await aio.xadd(stream, {"data": "no JSON"})
    jobs = JobAdmin(aio, stream)

    story = await jobs.show(entry_id.decode())
    listed = (await jobs.list("waiting")).jobs

    assert (story.phase, story.places[0].event) == ("waiting", "pay")
    assert [job.event for job in listed] == ["pay", ""]


async def test_several_groups_ask_for_a_name_and_each_has_its_jobs(
    aio: redis.asyncio.Redis, processor: Processor, stream: str
) -> None:
    for group in ("a", "b"):
        await aio.xgroup_create(stream, group, "0", mkstream=True)
    await processor.emit("pay", id="m")
    await aio.xreadgroup("a", "worker", {stream: ">"})

    assert await _ids(JobAdmin(aio, stream, group="a"), JobPhase.RUNNING) == ["m"]
    assert await _ids(JobAdmin(aio, stream, group="b"), JobPhase.WAITING) == ["m"]
    with pytest.raises(ConfigurationError, match="several groups; name one of them: a, b"):
        await JobAdmin(aio, stream).list("waiting")
    with pytest.raises(ConfigurationError, match="has no group 'c'; it has a, b"):
        await JobAdmin(aio, stream, group="c").list("waiting")


async def test_a_cursor_of_another_list_is_refused(aio: redis.asyncio.Redis, processor: Processor, stream: str) -> None:
    jobs = JobAdmin(aio, stream)
    await processor.emit("pay", id="m")

    for phase, cursor in (("waiting", "5~3"), ("delayed", "1-2-3"), ("dead", "x"), ("parked", "a~1")):
        with pytest.raises(ConfigurationError, match="not one of this list"):
            await jobs.list(phase, cursor=cursor)
    with pytest.raises(ConfigurationError, match="can be listed"):
        await jobs.list(JobPhase.SUCCEEDED)


async def _ids(jobs: JobAdmin, phase: JobPhase, where: JobFilter | None = None) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await jobs.list(phase, where or JobFilter(), cursor=cursor)
        found += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            return found


async def _lists(jobs: JobAdmin, phase: JobPhase, job_id: str) -> bool:
    return job_id in await _ids(jobs, phase)
