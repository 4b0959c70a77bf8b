"""Timeouts, concurrency, rate and middleware of a handler."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.processor.conftest import Place

from conquiet.errors import ConfigurationError, LifecycleError
from conquiet.metrics.registry import PROCESSOR_OUTCOMES_TOTAL, PROCESSOR_TIMEOUTS_TOTAL
from conquiet.processor import (
    JobContext,
    Jobs,
    JobState,
    NewMessage,
    Processor,
    RateLimit,
    Reject,
    RetryPolicy,
    SyncJobContext,
)
from conquiet.testing import wait_until_async

SOON = RetryPolicy.fixed(0.01, max_attempts=2)


async def test_an_async_handler_that_takes_too_long_is_cancelled_and_tried_again(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()
    cancelled: list[int] = []

    @processor.handler("pay", retry=SOON, timeout_s=0.05)
    async def pay(ctx: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(ctx.attempt)
            raise

    async with processor:
        await processor.emit("pay")
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert cancelled == [1, 2]
    assert dead.record.error_type == "conquiet.errors.HandlerTimeoutError"
    assert "was cancelled" in dead.record.error


@pytest.mark.parametrize("timeout_s", [None, 60])
@pytest.mark.parametrize("who", ["handler", "middleware"])
async def test_an_await_that_was_forgotten_is_no_success(
    make_processor: Callable[..., Processor], place: Place, who: str, timeout_s: float | None
) -> None:
    processor = make_processor()

    async def charge(ctx: JobContext) -> None:
        raise AssertionError("nobody awaits it")

    async def forgets(ctx: JobContext, call_next: Any) -> Any:
        return call_next(ctx)

    @processor.handler("pay", retry=SOON, timeout_s=timeout_s)
    async def pay(ctx: JobContext) -> Any:
        return charge(ctx)

    if who == "middleware":
        processor.add_middleware(forgets)
    async with processor:
        await processor.emit("pay")
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert dead.record.error_type == "conquiet.errors.ConfigurationError"


async def test_a_handlers_own_timeout_is_not_taken_for_ours(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()

    @processor.handler("pay", timeout_s=60)
    async def pay(ctx: JobContext) -> None:
        raise TimeoutError

    async with processor:
        await processor.emit("pay")
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert dead.record.error_type == "TimeoutError"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_thread_that_takes_too_long_is_reported_and_never_doubled(
    make_processor: Callable[..., Processor], place: Place, stream: str, *, fails: bool
) -> None:
    """It cannot be killed, so its message is not retried meanwhile. A late success is a success."""
    processor = make_processor()
    release = threading.Event()
    running: list[int] = []
    overdue: list[bool] = []

    @processor.handler("pay", retry=SOON, timeout_s=0.05)
    def pay(ctx: SyncJobContext) -> None:
        running.append(ctx.attempt)
        if ctx.attempt == 1:
            release.wait(60)
            overdue.append(ctx.is_overdue)
        if fails:
            raise LookupError

    async with processor:
        await processor.emit("pay", id="m")
        counter = PROCESSOR_TIMEOUTS_TOTAL.labels(stream, "pay", "running_on")
        await wait_until_async(lambda: counter._value.get() == 1)
        await wait_until_async(lambda: running, message="the thread has begun")
        await asyncio.sleep(0.1)
        assert running == [1]
        release.set()
        await wait_until_async(lambda: _is(place.pending, 0))
        if fails:
            await wait_until_async(lambda: _is(place.dead, 1))

    assert overdue == [True]
    assert running == ([1, 2] if fails else [1])


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "it goes on"])
async def test_a_message_that_waits_at_a_stop_is_released(
    make_processor: Callable[..., Processor], place: Place, *, ends: bool
) -> None:
    """It would begin while the engine is trying to end, and be broken off halfway."""
    processor = make_processor(job_ttl_s=60, refresh_s=0.05)
    begun: list[str] = []
    go = asyncio.Event()

    @processor.handler("pay", concurrency=1)
    async def pay(ctx: JobContext) -> None:
        begun.append(ctx.id)
        await go.wait()

    async with processor:
        await processor.emit_many([NewMessage("pay", id=f"m{number}") for number in range(4)])
        await wait_until_async(lambda: _is(place.pending, 4))
        await wait_until_async(lambda: begun)
        assert (await processor.jobs.count(place.keys.stream))[JobState.RUNNING] == 1
        processor.stop()
        if ends:
            go.set()
        else:  # notified by the next refresh
            await wait_until_async(lambda: _is(place.pending, 1))
            go.set()

    assert begun == ["m0"]
    assert await place.pending() == 0
    assert sorted((await place.attempts())[4:]) == [("m1", 1), ("m2", 1), ("m3", 1)]
    jobs = Jobs(place.client)
    assert (await jobs.count(place.keys.stream))[JobState.WAITING] == 3


async def test_the_decision_of_a_late_thread_is_kept(
    make_processor: Callable[..., Processor], place: Place, stream: str
) -> None:
    """The handler states that this message can never succeed; another attempt would fail in the same way."""
    processor = make_processor()
    release = threading.Event()
    attempts: list[int] = []

    @processor.handler("pay", retry=SOON, timeout_s=0.02)
    def pay(ctx: SyncJobContext) -> None:
        attempts.append(ctx.attempt)
        release.wait(60)
        raise Reject("no such account")

    async with processor:
        await processor.emit("pay")
        counter = PROCESSOR_TIMEOUTS_TOTAL.labels(stream, "pay", "running_on")
        await wait_until_async(lambda: counter._value.get() == 1)
        release.set()
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert attempts == [1]
    assert (dead.record.reason, dead.record.error) == ("rejected", "no such account")


async def test_a_plain_function_runs_in_a_thread_and_may_ack_and_emit(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()
    names: list[str] = []

    @processor.handler("first")
    def first(ctx: SyncJobContext) -> None:
        names.append(threading.current_thread().name)
        ctx.emit("second", {"from": ctx.id})
        ctx.ack()
        ctx.log("acknowledged early", amount=1)

    @processor.handler("second")
    def second(ctx: SyncJobContext) -> None:
        names.append(ctx.data["from"])

    async with processor:
        await processor.emit("first", id="m")
        await wait_until_async(lambda: len(names) == 2)

    assert names[0].startswith("conquiet-handler")
    assert names[1] == "m"


async def test_a_failure_after_an_early_ack_is_final(make_processor: Callable[..., Processor], place: Place) -> None:
    processor = make_processor()
    runs: list[int] = []

    @processor.handler("pay", retry=SOON)
    async def pay(ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        await ctx.ack()
        raise ConnectionError

    failed: list[Any] = []
    processor.on("failed", failed.append)
    async with processor:
        await processor.emit("pay")
        await wait_until_async(lambda: failed)

    assert runs == [1]
    assert await place.waiting() == await place.dead() == await place.pending() == 0


async def test_no_more_runs_of_a_handler_at_once_than_it_allows(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor(concurrency=8)
    now = {"narrow": 0, "wide": 0}
    most = dict(now)

    async def note(ctx: JobContext) -> None:
        now[ctx.event] += 1
        most[ctx.event] = max(most[ctx.event], now[ctx.event])
        await asyncio.sleep(0.01)
        now[ctx.event] -= 1

    processor.handler("narrow", concurrency=2)(note)
    processor.handler("wide")(note)
    async with processor:
        await processor.emit_many([NewMessage("narrow") for _ in range(10)])
        await wait_until_async(lambda: _is(lambda: _done(processor), 10))
        await processor.emit_many([NewMessage("wide") for _ in range(10)])
        await wait_until_async(lambda: _is(lambda: _done(processor), 20))

    assert most["narrow"] == 2
    assert most["wide"] > 2


async def test_starts_of_an_event_keep_their_distance_over_all_hosts(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    starts: list[float] = []
    hosts = [make_processor() for _ in range(2)]
    for host in hosts:

        @host.handler("call", rate=RateLimit(20, per_s=1.0))
        async def call(ctx: JobContext) -> None:
            starts.append(time.monotonic())

    began = time.monotonic()
    async with hosts[0], hosts[1]:
        await hosts[0].emit_many([NewMessage("call") for _ in range(10)])
        await wait_until_async(lambda: len(starts) == 10)

    # Ten turns of 50 ms are nine distances. The first turn is after we began, and no start is before its turn.
    assert max(starts) - began >= 0.45
    assert await place.pending() == await place.waiting() == 0


async def test_a_burst_may_start_at_once(make_processor: Callable[..., Processor], place: Place) -> None:
    processor = make_processor()
    starts: list[int] = []

    @processor.handler("call", rate=RateLimit(1, per_s=3600, burst=3))
    async def call(ctx: JobContext) -> None:
        starts.append(1)

    async with processor:
        await processor.emit_many([NewMessage("call") for _ in range(5)])
        await wait_until_async(lambda: _is(place.waiting, 2))
        await wait_until_async(lambda: len(starts) == 3)


async def test_middlewares_run_around_the_handler_outermost_first(
    make_processor: Callable[..., Processor], place: Place
) -> None:
    processor = make_processor()
    trace: list[str] = []

    async def outer(ctx: JobContext, call_next: Any) -> None:
        trace.append(f"outer {ctx.event}")
        try:
            await call_next(ctx)
        finally:
            trace.append("outer end")

    async def inner(ctx: JobContext, call_next: Any) -> None:
        if ctx.data.get("skip"):
            trace.append("skipped")
            return
        await call_next(ctx)

    processor.add_middleware(outer)
    processor.add_middleware(inner)

    @processor.handler("pay")
    def pay(ctx: SyncJobContext) -> None:
        trace.append("pay")

    async with processor:
        await processor.emit("pay")
        await wait_until_async(lambda: len(trace) == 3)
        await processor.emit("pay", {"skip": True})
        await wait_until_async(lambda: len(trace) == 6)
        await wait_until_async(lambda: _is(place.pending, 0))

    assert trace == ["outer pay", "pay", "outer end", "outer pay", "skipped", "outer end"]


async def test_context_variables_of_one_message_are_not_seen_by_the_next(
    make_processor: Callable[..., Processor],
) -> None:
    processor = make_processor(concurrency=1)
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")
    seen: list[str] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.append(request.get())
        request.set(ctx.id)

    async with processor:
        await processor.emit_many([NewMessage("pay"), NewMessage("pay")])
        await wait_until_async(lambda: len(seen) == 2)

    assert seen == ["none", "none"]


async def test_a_retry_is_for_the_group_that_failed(make_processor: Callable[..., Processor], place: Place) -> None:
    """Two groups get every message. When one of them fails, the other must not handle the retry as well."""
    runs: dict[str, list[int]] = {"billing": [], "audit": []}
    hosts = {group: make_processor(group=group) for group in runs}
    for group, host in hosts.items():

        @host.handler("pay", retry=SOON)
        async def pay(ctx: JobContext, group: str = group) -> None:
            runs[group].append(ctx.attempt)
            if group == "billing" and ctx.attempt == 1:
                raise ConnectionError

    async with hosts["billing"], hosts["audit"]:
        await hosts["audit"].emit("pay", id="m")
        await wait_until_async(lambda: runs["billing"] == [1, 2])
        await wait_until_async(lambda: _is(lambda: _entries_read(place, "audit"), 2))
        await wait_until_async(lambda: _is(lambda: place.pending("audit"), 0))

    assert runs == {"billing": [1, 2], "audit": [1]}


async def test_the_order_of_life_is_kept(make_processor: Callable[..., Processor]) -> None:
    processor = make_processor()
    processor.handler("pay")(print)

    with pytest.raises(ConfigurationError, match="already"):
        processor.handler("pay")(print)
    assert (processor.health().ready, processor.health().reason) == (False, "not started")
    async with processor:
        with pytest.raises(LifecycleError):
            processor.handler("mail")
        with pytest.raises(LifecycleError):
            processor.add_middleware(None)  # type: ignore[arg-type]
        assert processor.health().ready
    with pytest.raises(LifecycleError):
        await processor.start()


async def test_a_stop_before_the_start_is_heeded(make_processor: Callable[..., Processor]) -> None:
    processor = make_processor()
    processor.handler("pay")(_never)
    processor.stop()

    with pytest.raises(LifecycleError):
        await processor.start()


async def test_start_runs_until_stop(make_processor: Callable[..., Processor]) -> None:
    processor = make_processor()
    seen = asyncio.Event()

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        seen.set()

    running = asyncio.create_task(processor.start())
    await processor.emit("pay")
    await asyncio.wait_for(seen.wait(), 60)
    processor.stop()
    report = await asyncio.wait_for(running, 60)

    assert report.succeeded == 1
    await processor.wait_for_active_tasks()


async def test_attempts_are_counted_by_what_became_of_them(
    make_processor: Callable[..., Processor], stream: str
) -> None:
    processor = make_processor()

    @processor.handler("pay", retry=SOON)
    async def pay(ctx: JobContext) -> None:
        if ctx.data["fails"]:
            raise ConnectionError

    async with processor:
        await processor.emit_many([NewMessage("pay", {"fails": False}), NewMessage("pay", {"fails": True})])
        await wait_until_async(lambda: processor.health().streams[stream].failed == 2)
        await wait_until_async(lambda: processor.health().streams[stream].succeeded == 1)

    counts = {
        outcome: PROCESSOR_OUTCOMES_TOTAL.labels(stream, "pay", outcome)._value.get()
        for outcome in ("done", "retry", "dead")
    }
    assert counts == {"done": 1, "retry": 1, "dead": 1}


async def _done(processor: Any) -> int:
    return sum(counts.succeeded for counts in processor.health().streams.values())


async def _entries_read(place: Place, group: str) -> int:
    groups: Any = await place.client.xinfo_groups(place.keys.stream)
    (found,) = [one for one in groups if one["name"] == group.encode()]
    return int(found["entries-read"])


async def _is(question: Any, answer: int) -> bool:
    return bool(await question() == answer)


async def _never(_: JobContext) -> None:
    raise AssertionError
