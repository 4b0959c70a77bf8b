"""A server is unavailable, the handler's or conquiet's: no message is charged, and the error names the cause."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.integration.processor.conftest import Place
from tests.redis_clients import RawAsyncRedis

from conquiet.core.backoff import Backoff
from conquiet.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    InfrastructureError,
    MessageInProgressError,
    QueueError,
)
from conquiet.processor import JobContext, JobState, Processor, RetryPolicy, SyncEmitter, SyncJobContext
from conquiet.runtime import RuntimeSettings
from conquiet.scheduler import Schedules
from conquiet.testing import wait_until_async

SOON = RuntimeSettings(
    claim_idle_ms=300, max_deliveries=None, outage=Backoff(base_s=0.05, cap_s=2.0, factor=1.0, jitter=0.0)
)


@pytest.mark.parametrize(
    "error", [DatabaseUnavailableError, CommitUnknownError, InfrastructureError, MessageInProgressError]
)
async def test_an_infrastructure_fault_costs_no_attempt_and_no_message(
    make_processor: Callable[..., Processor], place: Place, error: type[Exception]
) -> None:
    """Ten consecutive faults, with three allowed attempts and no exception that the policy retries."""
    processor = make_processor(runtime=SOON)
    attempts: list[int] = []
    done = asyncio.Event()
    faults = 10

    @processor.handler("pay", retry=RetryPolicy(max_attempts=3, no_retry_for=(InfrastructureError,)))
    async def pay(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) <= faults:
            raise error("the database is away")
        done.set()

    async with processor:
        await processor.emit("pay", id="m")
        await asyncio.wait_for(done.wait(), 40)
        await wait_until_async(lambda: _is(place.pending, 0))

    assert attempts == [1] * (faults + 1)
    assert await place.attempts() == [("m", 1)]  # never written a second time
    assert (await place.waiting(), await place.dead()) == (0, 0)


async def test_an_infrastructure_fault_leaves_its_job_waiting(
    make_processor: Callable[..., Processor], stream: str
) -> None:
    processor = make_processor(job_ttl_s=60, runtime=RuntimeSettings(claim_idle_ms=600_000))

    @processor.handler("pay", retry=RetryPolicy.fixed(0, max_attempts=3))
    async def pay(ctx: JobContext) -> None:
        if ctx.data:
            raise DatabaseUnavailableError("the database is away")

    async with processor:
        await processor.emit("pay", {"n": 1}, id="m")
        await wait_until_async(lambda: processor.health().streams[stream].failed >= 1)
        job = await processor.jobs.get(stream, "m")

    assert job is not None
    assert job.state in {JobState.WAITING, JobState.RUNNING}
    assert job.error_type.endswith("DatabaseUnavailableError")
    assert job.attempt == 1


@pytest.mark.parametrize("acked", [False, True])
async def test_a_late_infrastructure_fault_of_a_thread_is_not_a_timeout(
    make_processor: Callable[..., Processor], place: Place, *, acked: bool
) -> None:
    processor = make_processor(runtime=RuntimeSettings(claim_idle_ms=600_000))
    errors: list[BaseException] = []
    release = threading.Event()

    @processor.handler("pay", timeout_s=0.05)
    def pay(ctx: SyncJobContext) -> None:
        if acked:
            ctx.ack()
        release.wait(10)
        raise DatabaseUnavailableError("the database is away")

    processor.on("failed", lambda event: errors.append(event.error))
    async with processor:
        await processor.emit("pay")
        await asyncio.sleep(0.2)
        release.set()
        await wait_until_async(lambda: len(errors) == 1)

    assert isinstance(errors[0], DatabaseUnavailableError)
    assert await place.pending() == (0 if acked else 1)
    assert await place.dead() == 0


async def _emit(processor: Processor, url: str) -> Any:
    return await processor.emit("pay")


async def _emit_once(processor: Processor, url: str) -> Any:
    return await processor.emit("pay", id="m", delay_s=5)


async def _start(processor: Processor, url: str) -> Any:
    processor.handler("pay")(_never)
    return await processor.start()


async def _pause(processor: Processor, url: str) -> Any:
    return await processor.pause()


async def _sync_emit(processor: Processor, url: str) -> Any:
    with redis.Redis.from_url(url) as client, SyncEmitter(client, "orders") as emitter:
        return await asyncio.to_thread(emitter.emit, "pay")


async def _schedule(processor: Processor, url: str) -> Any:
    async with redis.asyncio.Redis.from_url(url) as client:
        return await Schedules(client, group="g").remove("nightly")


@pytest.mark.parametrize("call", [_emit, _emit_once, _start, _pause, _sync_emit, _schedule])
async def test_a_refused_connection_has_sent_nothing_and_names_the_address(
    make_processor: Callable[..., Processor], closed_port: int, call: Callable[..., Any]
) -> None:
    address = f"127.0.0.1:{closed_port}"
    url = f"redis://jane:s3cret@{address}/0"

    with pytest.raises(QueueError, match="was not sent") as caught:
        await call(make_processor(url=url), url)

    assert not caught.value.in_doubt
    assert address in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "emit_now" not in str(caught.value)
    assert "promote_due" not in str(caught.value)


async def test_a_thousand_concurrent_emits_do_not_run_out_of_connections(
    make_processor: Callable[..., Processor], client: RawAsyncRedis, stream: str, redis_url: str
) -> None:
    processor = make_processor(url=redis_url)

    sent = await asyncio.gather(*(processor.emit("pay", {"n": n}) for n in range(1_000)))

    assert len({one.entry_id for one in sent}) == 1_000
    assert await client.xlen(stream) == 1_000
    assert (await client.info("clients"))["connected_clients"] < 60


def test_three_hundred_threads_share_a_sync_emitter(redis_url: str, stream: str) -> None:
    failures: list[BaseException] = []
    start = threading.Barrier(300)

    def emit() -> None:
        start.wait()
        try:
            for _ in range(3):
                emitter.emit("pay")
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    with redis.Redis.from_url(redis_url) as client, SyncEmitter(client, stream) as emitter:
        threads = [threading.Thread(target=emit) for _ in range(300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert client.xlen(stream) == 900


async def _never(_: JobContext) -> None:
    raise AssertionError


async def _is(found: Callable[..., Any], wanted: int) -> bool:
    return bool(await found() == wanted)
