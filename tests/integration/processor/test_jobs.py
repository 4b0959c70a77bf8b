"""Job states: off by default, and correct if enabled."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.redis_clients import RawAsyncRedis

from conquiet import SyncEmitter
from conquiet.errors import ConfigurationError
from conquiet.processor import (
    Emitter,
    JobContext,
    Jobs,
    JobState,
    NewMessage,
    Processor,
    ProcessorSettings,
    RetryPolicy,
)
from conquiet.processor.envelope import Envelope
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.keys import Keys
from conquiet.testing import wait_until_async


async def test_without_a_ttl_nothing_is_kept_about_jobs(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor()
    processor.handler("pay")(_nothing)

    async with processor:
        await processor.emit("pay", id="m")
        await wait_until_async(lambda: processor.health().streams[keys.stream].succeeded == 1)

    assert await client.keys("*job*") == []


async def test_a_job_goes_through_its_states(make_processor: Callable[..., Processor]) -> None:
    processor = make_processor(job_ttl_s=60)
    go = asyncio.Event()

    @processor.handler("pay", retry=RetryPolicy.fixed(0.05, max_attempts=2))
    async def pay(ctx: JobContext) -> None:
        await go.wait()
        if ctx.attempt == 1:
            raise LookupError("DE02")

    jobs: Any = processor.jobs
    stream = processor._streams[0]
    await processor.emit("pay", id="m")
    await processor.emit("pay", id="later", delay_s=600)
    assert (await jobs.get(stream, "m")).state is JobState.WAITING
    assert (await jobs.get(stream, "later")).state is JobState.DELAYED
    assert await jobs.get(stream, "nobody") is None

    async with processor:
        await wait_until_async(lambda: _state(jobs, stream, "m", JobState.RUNNING))
        go.set()
        await wait_until_async(lambda: _state(jobs, stream, "m", JobState.SUCCEEDED))
        job = await jobs.get(stream, "m")
        counts = await jobs.count(stream)

    assert (job.event, job.attempt, job.error_type) == ("pay", 2, "LookupError")
    assert set(job.times_ms) == {JobState.WAITING, JobState.RUNNING, JobState.FAILED, JobState.SUCCEEDED}
    assert {state: count for state, count in counts.items() if count} == {JobState.DELAYED: 1, JobState.SUCCEEDED: 1}


async def test_a_dead_job_is_known_and_a_finished_one_is_forgotten(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys
) -> None:
    """The server forgets; here its clock is helped along, so that no machine can be too slow to look in time."""
    processor = make_processor(job_ttl_s=90)
    stream = processor._streams[0]

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        raise LookupError

    async with processor:
        await processor.emit("pay", id="m")
        await wait_until_async(lambda: _state(processor.jobs, stream, "m", JobState.DEAD))
        assert 0 < await client.pttl(keys.job("m")) <= 90_000
        assert (await processor.jobs.count(stream))[JobState.DEAD] == 1
        await client.delete(keys.job("m"))
        await client.zadd(keys.jobs("dead"), {"m": 1})  # since 1970
        assert await processor.jobs.get(stream, "m") is None
        await processor.emit("pay", id="n")
        await wait_until_async(lambda: _state(processor.jobs, stream, "n", JobState.DEAD))
        assert (await processor.jobs.count(stream))[JobState.DEAD] == 1


async def test_the_job_of_an_id_that_emit_refuses_is_returned(client: RawAsyncRedis, keys: Keys) -> None:
    """Another program may write any id."""
    jobs: Any = Jobs(client)
    await JobRecorder(client, ttl_s=90).record(keys, Envelope("pay", "a\nb"), JobState.SUCCEEDED)

    job = await jobs.get(keys.stream, "a\nb")

    assert job.state is JobState.SUCCEEDED
    with pytest.raises(ConfigurationError, match="job_id must be a str, got an int"):
        await jobs.get(keys.stream, 5)


async def test_finished_jobs_leave_the_index_some_at_a_time(client: RawAsyncRedis, keys: Keys) -> None:
    """After a quiet time all of them have expired, and a million in one call would block the server."""
    await client.zadd(keys.jobs("succeeded"), {f"m{number}": 1 for number in range(1_500)})
    recorder = JobRecorder(client, ttl_s=90)
    left = []

    for _ in range(3):
        await recorder.record(keys, Envelope("pay", "m"), JobState.SUCCEEDED)
        left.append(await client.zcard(keys.jobs("succeeded")))

    assert left == [501, 1, 1]
    assert await client.zrange(keys.jobs("succeeded"), 0, -1) == [b"m"]


@pytest.mark.parametrize("count", [5, 700])
async def test_jobs_of_a_state_can_be_paged_through(make_processor: Callable[..., Processor], count: int) -> None:
    processor = make_processor(job_ttl_s=60)
    await processor.emit_many([NewMessage("pay", id=f"m{number}") for number in range(count)])

    found: set[str] = set()
    cursor = 0
    while True:
        page = await processor.jobs.list(processor._streams[0], JobState.WAITING, cursor=cursor, limit=50)
        found |= set(page.ids)
        cursor = page.cursor
        if cursor == 0:
            break

    assert found == {f"m{number}" for number in range(count)}


async def test_a_state_that_cannot_be_written_fails_no_message(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys
) -> None:
    await client.set(keys.jobs("running"), "in the way")
    processor = make_processor(job_ttl_s=60)
    processor.handler("pay")(_nothing)

    async with processor:
        await processor.emit("pay")
        await wait_until_async(lambda: processor.health().streams[keys.stream].succeeded == 1)


async def test_a_job_that_fails_after_its_ack_is_dead_and_forgotten(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys
) -> None:
    processor = make_processor(job_ttl_s=90)

    @processor.handler("pay", retry=RetryPolicy.fixed(0, max_attempts=3))
    async def pay(ctx: JobContext) -> None:
        await ctx.ack()
        raise LookupError

    async with processor:
        await processor.emit("pay", id="m")
        await wait_until_async(lambda: _state(processor.jobs, keys.stream, "m", JobState.DEAD))
        assert 0 < await client.pttl(keys.job("m")) <= 90_000
        assert (await processor.jobs.count(keys.stream))[JobState.RUNNING] == 0


async def test_a_state_that_comes_late_changes_nothing(client: RawAsyncRedis, keys: Keys) -> None:
    """Two hosts write about one job, and the slower one's news is older."""
    recorder, jobs = JobRecorder(client, ttl_s=90), Jobs(client)
    reported = [
        (1, JobState.RUNNING, JobState.RUNNING),
        (2, JobState.RUNNING, JobState.RUNNING),
        (1, JobState.FAILED, JobState.RUNNING),
        (2, JobState.SUCCEEDED, JobState.SUCCEEDED),
        (1, JobState.FAILED, JobState.SUCCEEDED),
        (2, JobState.FAILED, JobState.SUCCEEDED),
        (1, JobState.RUNNING, JobState.RUNNING),  # a new life: replayed, or the same id once more
        (1, JobState.DEAD, JobState.DEAD),
        (1, JobState.FAILED, JobState.DEAD),
    ]

    for attempt, state, expected in reported:
        await recorder.record(keys, Envelope("pay", "m", attempt=attempt), state)
        job: Any = await jobs.get(keys.stream, "m")
        assert job.state is expected
        assert {each: count for each, count in (await jobs.count(keys.stream)).items() if count} == {expected: 1}
        assert (await client.pttl(keys.job("m")) > 0) == (expected is not JobState.RUNNING)  # live jobs stay


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_of_a_burst_only_the_job_that_waits_is_known(
    make_processor: Callable[..., Processor], redis_url: str, keys: Keys, kind: str
) -> None:
    processor = make_processor(job_ttl_s=90)
    with redis.Redis.from_url(redis_url) as own, SyncEmitter(own, keys.stream, processor._settings) as emitter:
        ids = []
        for number in range(3):
            options: dict[str, Any] = {"delay_s": 60, "debounce": "x", "max_attempts": number + 1}
            event = ',"id":"abc","attempt":1,'  # a name of ill will
            sent = emitter.emit(event, **options) if kind == "sync" else await processor.emit(event, **options)
            ids.append(sent.id)

    states = [await processor.jobs.get(keys.stream, job_id) for job_id in ids]
    assert states[:2] == [None, None]
    assert states[2] is not None
    assert states[2].state is JobState.DELAYED
    assert sum((await processor.jobs.count(keys.stream)).values()) == 1


@pytest.mark.parametrize("slower", ["first", "second"])
async def test_of_two_that_debounce_only_the_waiting_job_is_known(
    client: RawAsyncRedis, keys: Keys, slower: str
) -> None:
    """Even if one of them learns late, or never, the outcome of its message."""
    settings = ProcessorSettings(job_ttl_s=90)
    slow = _SlowReplies(client)
    clients: list[Any] = [slow, client] if slower == "first" else [client, slow]
    first, second = (Emitter(one, keys.stream, settings, jobs=JobRecorder(one, ttl_s=90)) for one in clients)

    waiting = asyncio.create_task(first.emit("pay", delay_s=60, debounce="x"))
    await (slow.answered.wait() if slower == "first" else waiting)
    replacing = asyncio.create_task(second.emit("pay", delay_s=60, debounce="x"))
    await (slow.answered.wait() if slower == "second" else replacing)

    (payload,) = await client.zrange(keys.delayed, 0, -1)
    assert await client.zrange(keys.jobs("delayed"), 0, -1) == [json.loads(payload)["id"].encode()]
    slow.go.set()
    replaced, kept = await waiting, await replacing
    jobs = Jobs(client)
    assert await jobs.get(keys.stream, replaced.id) is None
    job: Any = await jobs.get(keys.stream, kept.id)
    assert (job.state, job.event, job.attempt, list(job.times_ms)) == (JobState.DELAYED, "pay", 1, [JobState.DELAYED])
    assert sum((await jobs.count(keys.stream)).values()) == 1


async def test_a_replaced_job_is_forgotten_also_by_who_keeps_no_states(client: RawAsyncRedis, keys: Keys) -> None:
    settings = ProcessorSettings(job_ttl_s=90)
    await Emitter(client, keys.stream, settings, jobs=JobRecorder(client, ttl_s=90)).emit(
        "pay", delay_s=60, debounce="x"
    )

    await Emitter(client, keys.stream).emit("pay", delay_s=60, debounce="x")

    assert await client.zcard(keys.jobs("delayed")) == 0
    assert await client.keys("*:job:*") == []


async def test_a_debounced_message_waits_also_where_its_state_cannot_be_written(
    client: RawAsyncRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    emitter = Emitter(client, keys.stream, ProcessorSettings(job_ttl_s=90), jobs=JobRecorder(client, ttl_s=90))
    await client.set(keys.jobs("delayed"), "in the way")

    await emitter.emit("pay", delay_s=60, debounce="x")
    await emitter.emit("pay", delay_s=60, debounce="x")

    assert await client.zcard(keys.delayed) == 1
    assert [record.message[:22] for record in caplog.records] == ["job states not written"] * 2


@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.DEAD])
async def test_an_end_that_could_not_be_written_is_written_later(
    client: RawAsyncRedis,
    keys: Keys,
    end: JobState,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise one lost connection would leave the job running in the records."""
    monkeypatch.setattr("conquiet.processor.jobs._PAUSE_S", 0.0)
    gone: Any = _Gone(client)
    recorder, jobs = JobRecorder(gone, ttl_s=90), Jobs(client)
    await recorder.record(keys, Envelope("pay", "m"), JobState.RUNNING)
    gone.times = 2

    await recorder.record(keys, Envelope("pay", "m"), end)
    recorder.retry_failed()
    await recorder.record(keys, Envelope("pay", "n"), JobState.RUNNING)  # lost, and not reported after its end
    await recorder.record(keys, Envelope("pay", "n"), end)
    recorder.retry_failed()
    await recorder.record(keys, Envelope("pay", "o"), end)

    assert gone.times == 0
    assert (await jobs.count(keys.stream))[end] == 3
    assert [(record.message[:22], record.__dict__["jobs"]) for record in caplog.records] == [
        ("job states not written", 1)
    ]


async def test_an_end_that_cannot_be_written_is_given_up_at_the_end(
    client: RawAsyncRedis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    gone: Any = _Gone(client, times=5)
    recorder = JobRecorder(gone, ttl_s=90)
    await recorder.record(keys, Envelope("pay", "m"), JobState.SUCCEEDED)
    assert not caplog.records

    await recorder.drain()
    await recorder.drain()

    assert gone.times == 3
    assert [record.message[:22] for record in caplog.records] == ["job states not written"]


async def test_a_processor_tries_to_write_ends_again(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conquiet.processor.jobs._PAUSE_S", 0.0)
    processor = make_processor(job_ttl_s=90, refresh_s=0.05)
    recorder: Any = processor._recorder

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        recorder._client = _Gone(client, times=1)

    async with processor:
        await processor.emit("pay", id="m")
        await wait_until_async(lambda: _state(processor.jobs, keys.stream, "m", JobState.SUCCEEDED))
        assert recorder._client.times == 0


class _Gone:
    """A client that loses its connection this many times."""

    def __init__(self, client: RawAsyncRedis, times: int = 0) -> None:
        self._client = client
        self.times = times

    async def execute_command(self, *words: Any) -> Any:
        if self.times > 0:
            self.times -= 1
            raise redis.ConnectionError
        return await self._client.execute_command(*words)


class _SlowReplies:
    """A client with delayed replies."""

    def __init__(self, client: RawAsyncRedis) -> None:
        self._client = client
        self.answered = asyncio.Event()
        self.go = asyncio.Event()

    async def execute_command(self, *words: Any) -> Any:
        reply = await self._client.execute_command(*words)
        self.answered.set()
        await self.go.wait()
        return reply


async def _nothing(ctx: JobContext) -> None:
    return


async def _state(jobs: Any, stream: str, job_id: str, state: JobState) -> bool:
    job = await jobs.get(stream, job_id)
    return job is not None and job.state is state


async def test_finished_jobs_leave_the_index_of_a_quiet_stream(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, keys: Keys
) -> None:
    """Writing a state removes them, but here none is written any more."""
    processor = make_processor(job_ttl_s=90)
    processor.handler("pay")(_nothing)
    await client.zadd(keys.jobs("succeeded"), {"m": 1})

    async with processor:
        await wait_until_async(lambda: _is_empty(client, keys.jobs("succeeded")))


async def _is_empty(client: RawAsyncRedis, key: str) -> bool:
    return int(await client.zcard(key)) == 0
