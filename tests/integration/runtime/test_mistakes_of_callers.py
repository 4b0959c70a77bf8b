"""Mistakes of callers outside of their handlers: callbacks, wrong kinds of arguments, threads that continue."""

import asyncio
import threading
from typing import Any

import pytest
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run
from tests.redis_clients import RawRedis

from conquiet.errors import ConfigurationError, LeaseLostError
from conquiet.metrics.registry import RUNTIME_IN_FLIGHT
from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.runtime.context import SyncMessageContext
from conquiet.runtime.message import HandlerState
from conquiet.testing import wait_until, wait_until_async


def in_hand(stream: str) -> float:
    value: float = RUNTIME_IN_FLIGHT.labels(stream)._value.get()
    return value


async def test_a_callback_that_raises_a_cancellation_costs_no_message(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    """It awaited a cancelled future. The message would never be run and never released."""
    enqueue(1)
    ran: list[str] = []

    def careless(_: object) -> None:
        raise asyncio.CancelledError

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        ran.append(message.id)

    engine = make_engine(handler)
    engine.on("started", careless)
    running = run(engine)
    await wait_until_async(lambda: ran)
    report = await running.stop()

    assert report.succeeded == 1


async def test_a_cancellation_out_of_on_exhausted_is_reported(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, raw: RawRedis, stream: str
) -> None:
    enqueue(1)
    raw.xgroup_create(stream, "processor", "0")
    raw.xreadgroup("processor", "gone", {stream: ">"})

    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    running = run(make_engine(print, on_exhausted=cancelled, max_deliveries=1, claim_idle_ms=100))
    await wait_until_async(lambda: running.errors)
    await running.stop()

    assert {type(error) for error in running.errors} == {asyncio.CancelledError}


@pytest.mark.parametrize("event", [threading.Event(), asyncio.Event])
async def test_a_stop_event_that_would_never_end_the_engine_is_refused(make_engine: MakeEngine, event: Any) -> None:
    engine = make_engine(print)

    with pytest.raises(ConfigurationError, match=r"asyncio\.Event"):
        await engine.start(event)


def test_a_single_name_in_place_of_a_list_is_refused(make_engine: MakeEngine, stream: str) -> None:
    with pytest.raises(ConfigurationError, match="list of stream names"):
        make_engine(print).pause_streams(stream)


async def test_messages_in_flight_of_all_engines_are_added_up(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, stream: str
) -> None:
    """Even while no slot is free and nothing else changes the numbers."""
    enqueue(3)
    leave = asyncio.Event()

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        await leave.wait()

    first, second = (run(make_engine(handler, group=group, concurrency=3)) for group in ("one", "two"))
    await wait_until_async(lambda: in_hand(stream) == 6)
    first.engine.stop()
    first.engine.stop()
    await first.task
    after_one = in_hand(stream)
    leave.set()
    await second.stop()

    assert after_one == 3
    assert in_hand(stream) == 0


def test_a_thread_that_outlives_its_loop_gets_an_error(enqueue: Enqueue, make_engine: MakeEngine) -> None:
    enqueue(1)
    entered, ended = threading.Event(), threading.Event()
    reported: list[str] = []

    def handler(message: RuntimeMessage, ctx: SyncMessageContext) -> None:
        entered.set()
        ended.wait(60)
        for call in (ctx.extend, ctx.ack):
            try:
                call()
            except LeaseLostError:
                reported.append("refused")
        # The same, had it been about to call when its loop ended.
        message.progress = HandlerState.RUNNING
        for call in (ctx.extend, ctx.ack):
            try:
                call()
            except LeaseLostError:
                reported.append("too late")

    async def life() -> None:
        engine = make_engine(handler)
        task = asyncio.create_task(engine.start())
        await wait_until_async(entered.is_set)
        engine.stop()
        engine.stop()
        assert len((await task).abandoned) == 1

    asyncio.run(life())
    ended.set()
    wait_until(lambda: len(reported) == 4)

    assert reported == ["refused", "refused", "too late", "too late"]


@pytest.mark.parametrize("in_task", [False, True])
async def test_an_async_callback_may_close_its_engine(
    make_engine: MakeEngine, enqueue: Enqueue, *, in_task: bool
) -> None:
    """The engine waits for its callbacks, so such a close can only stop it. In a task: ``asyncio.wait_for``."""
    enqueue(1)
    closed: list[bool] = []

    async def handle(_: RuntimeMessage, __: MessageContext) -> None:
        pass

    async def close(_: object) -> None:
        await (asyncio.create_task(engine.close()) if in_task else engine.close())
        closed.append(True)

    engine = make_engine(handle)
    engine.on("succeeded", close)
    report = await asyncio.wait_for(engine.run(), 60)

    assert (report.succeeded, closed) == (1, [True])
