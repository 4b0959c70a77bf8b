"""A stop that comes while a processor starts, and a lease that ends because we settled."""

import asyncio
import time
from typing import Any

import pytest
from tests.integration.processor.conftest import MakeProcessor

from conquiet.core.lifecycle import Status
from conquiet.errors import LifecycleError
from conquiet.processor import JobContext, RetryPolicy
from conquiet.processor.delayed import DelayedPromoter
from conquiet.processor.jobs import JobRecorder
from conquiet.runtime import EngineError, RuntimeSettings
from conquiet.runtime.health import NOTHING_DONE
from conquiet.testing import wait_until_async


async def test_a_stop_before_the_engine_has_begun_is_a_good_end(
    make_processor: MakeProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = make_processor()
    processor.handler("pay")(_never)
    start = DelayedPromoter.start

    async def interrupted(promoter: DelayedPromoter) -> None:
        await start(promoter)
        processor.stop()

    monkeypatch.setattr(DelayedPromoter, "start", interrupted)

    assert await processor.start() == NOTHING_DONE


async def test_a_processor_that_starts_is_not_reported_as_stopping(
    make_processor: MakeProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Redis that does not reply makes the start last."""
    processor = make_processor()
    processor.handler("pay")(_never)
    starting, go_on = asyncio.Event(), asyncio.Event()
    start = DelayedPromoter.start

    async def slow(promoter: DelayedPromoter) -> None:
        starting.set()
        await go_on.wait()
        await start(promoter)

    monkeypatch.setattr(DelayedPromoter, "start", slow)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(processor.run())
        await starting.wait()
        health = processor.health()
        go_on.set()
        await wait_until_async(lambda: processor.health().ready)
        processor.stop()

    assert (health.status, health.reason) == (Status.RUNNING, "not connected to Redis")


async def test_a_processor_that_was_stopped_cannot_be_started(make_processor: MakeProcessor) -> None:
    processor = make_processor()
    processor.handler("pay")(_never)
    processor.stop()

    with pytest.raises(LifecycleError):
        await processor.start()


async def test_a_run_that_is_cancelled_while_it_ends_can_be_closed(
    make_processor: MakeProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = make_processor(job_ttl_s=60)
    processor.handler("pay")(_never)
    draining = asyncio.Event()

    async def silent(_: JobRecorder) -> None:
        draining.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(JobRecorder, "drain", silent)
    running = asyncio.create_task(processor.run())
    await wait_until_async(lambda: processor.health().ready)
    running.cancel()
    await draining.wait()
    running.cancel()

    await asyncio.wait_for(processor.close(), 10)

    assert running.cancelled()
    assert processor.status is Status.STOPPED


@pytest.mark.parametrize("outcome", ["retry", "dead"])
async def test_a_heartbeat_between_a_settlement_and_its_answer_finds_no_loss(
    make_processor: MakeProcessor, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    processor = make_processor(runtime=RuntimeSettings(claim_idle_ms=600_000))
    errors: list[BaseException] = []
    settled = asyncio.Event()
    policy = RetryPolicy.fixed(60, max_attempts=2 if outcome == "retry" else 1)

    async def fail(_: JobContext) -> None:
        raise LookupError

    def note(event: EngineError) -> None:
        errors.append(event.error)

    processor.handler("pay", retry=policy)(fail)
    processor.on("error", note)
    async with processor:
        engine: Any = processor._engine
        settler = engine._executor._settler
        exchange = settler._exchange

        async def answered_late(calls: Any) -> Any:
            replies = await exchange(calls)
            await asyncio.to_thread(engine._heartbeat.beat, time.monotonic() + 300)
            settled.set()
            return replies

        monkeypatch.setattr(settler, "_exchange", answered_late)
        await processor.emit("pay")
        await settled.wait()
        await wait_until_async(lambda: processor.health().in_flight == 0)

    assert [type(error) for error in errors] == [LookupError]  # the handler's own


async def _never(_: JobContext) -> None:
    raise AssertionError
