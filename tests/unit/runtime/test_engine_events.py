"""Events reach their callbacks."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.runtime.messages import a_message

from conquiet.errors import ConfigurationError
from conquiet.runtime.engine_events import EngineError, EventDispatcher, Started
from conquiet.testing import wait_until_async


async def test_events_reach_all_callbacks_although_one_is_broken() -> None:
    dispatcher = EventDispatcher(limit=2)
    heard: list[Any] = []

    async def later(event: Any) -> None:
        heard.append(("async", event))

    def lazy(event: Any) -> Any:
        return later(event)

    async def broken(event: Any) -> None:
        raise RuntimeError

    async def cancels_itself(event: Any) -> None:
        raise asyncio.CancelledError

    dispatcher.on("started", lambda event: heard.append(("plain", event)))
    for callback in (cancels_itself, broken, lazy, later):
        dispatcher.on("started", callback)
    for unusable in (3, lambda: None, _generator):
        with pytest.raises(ConfigurationError):
            dispatcher.on("started", unusable)  # type: ignore[arg-type]
    dispatcher.start()
    event = Started(a_message())
    dispatcher.emit(event)
    dispatcher.emit(EngineError(ValueError()))
    assert dispatcher.is_full
    await dispatcher.wait_below_limit()

    assert await dispatcher.close(timeout_s=1) == 0
    assert heard == [("plain", event), ("async", event), ("async", event)]
    assert dispatcher.subscribed == {Started}


async def test_a_hanging_callback_does_not_block_the_end() -> None:
    dispatcher = EventDispatcher()

    async def hangs(event: Any) -> None:
        await asyncio.sleep(60)

    dispatcher.on("error", hangs)
    assert await dispatcher.close(timeout_s=0) == 0
    dispatcher.start()
    dispatcher.emit(EngineError(ValueError()))
    assert await dispatcher.close(timeout_s=0.05) == 1


@pytest.mark.parametrize("late", [True, False])
async def test_a_cancelled_callback_costs_no_other_an_event(*, late: bool) -> None:
    dispatcher = EventDispatcher()
    heard: list[Any] = []

    async def watched(event: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        heard.append(event)
        asyncio.get_running_loop().call_soon(task.cancel)
        if not late:
            await asyncio.sleep(60)

    dispatcher.on("started", watched)
    dispatcher.start()
    for number in range(1, 4):
        dispatcher.emit(Started(a_message()))
        await wait_until_async(lambda number=number: len(heard) == number)  # type: ignore[misc]
        await asyncio.sleep(0)

    assert await dispatcher.close(timeout_s=10) == 0
    assert len(heard) == 3


async def test_a_dispatcher_that_is_not_closed_ends_with_its_loop() -> None:
    dispatcher = EventDispatcher()

    async def start() -> None:
        dispatcher.start()
        await asyncio.sleep(0)

    await asyncio.create_task(start())
    assert dispatcher._task is not None
    dispatcher._task.cancel()
    _, left = await asyncio.wait({dispatcher._task}, timeout=10)
    await dispatcher.close(timeout_s=0)

    assert not left


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_callback_that_swallows_its_cancellation_does_not_block_the_end(goes_on: bool) -> None:  # noqa: FBT001
    dispatcher = EventDispatcher()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def swallows(event: Any) -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if goes_on:
                await leave.wait()

    dispatcher.on("error", swallows)
    dispatcher.start()
    dispatcher.emit(EngineError(ValueError()))
    dispatcher.emit(EngineError(ValueError()))
    await entered.wait()

    async with asyncio.timeout(30):
        assert await dispatcher.close(timeout_s=0.05) == 1 + goes_on
    assert dispatcher._task is not None
    leave.set()
    await asyncio.wait_for(dispatcher._task, 30)  # and calls no listener any more


async def test_a_callback_may_raise_anything_and_no_payload_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dispatcher = EventDispatcher()
    heard: list[str] = []

    def plain(event: EngineError) -> None:
        heard.append("plain")
        raise event.error

    async def deferred(event: EngineError) -> None:
        heard.append("async")
        raise event.error

    dispatcher.on("error", plain)
    dispatcher.on("error", deferred)
    dispatcher.start()
    for kind in (ValueError, _OddError):
        dispatcher.emit(EngineError(kind("card 4111")))
    assert await dispatcher.close(timeout_s=30) == 0

    assert sorted(heard) == ["async", "async", "plain", "plain"]
    failures = [record for record in caplog.records if record.getMessage().startswith("event callback failed")]
    assert len(failures) == 4
    assert {vars(record)["error"] for record in failures} == {"ValueError", "_OddError"}
    assert all(Path(__file__).name in vars(record)["place"] for record in failures)
    assert "4111" not in caplog.text


def _generator(event: Any) -> Any:
    yield event


class _OddError(BaseException):
    """Not an ``Exception``."""
