"""The engine's pure parts: settings, schedules, leases, handing back, counting."""

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Histogram
from redis.exceptions import ResponseError
from rich.pretty import pretty_repr

from conquiet.errors import ConfigurationError, LeaseLostError
from conquiet.kernel.backoff import Backoff
from conquiet.kernel.lifecycle import Status
from conquiet.runtime import handover
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.context import MessageContext, RuntimeMessage
from conquiet.runtime.events import EngineError, EventDispatcher, Started
from conquiet.runtime.health import Health
from conquiet.runtime.lease import LeaseTable, due, lapsed
from conquiet.runtime.metrics import observe_many
from conquiet.runtime.reconnect import Reconnect
from conquiet.runtime.runner import is_async
from conquiet.runtime.settings import RuntimeSettings, require_streams, settings_from
from conquiet.runtime.stealing import START, StealSchedule, after
from conquiet.testing import wait_until_async


def a_message(message_id: str = "1-0", stream: str = "s", **facts: Any) -> RuntimeMessage:
    message = RuntimeMessage(stream, message_id, {"secret": "x"}, leased_at=facts.pop("leased_at", 0.0))
    for name, value in facts.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_ms": 0}, {"claim_idle_ms": True}, {"prefetch": -1}, {"prefetch": False}, {"max_deliveries": 0},
        {"max_lease_s": 0}, {"grace_s": -1}, {"max_reconnects": 0}, {"reconnect": 3}, {"max_payload_bytes": "1"},
        {"priorities": {"s": True}}, {"priorities": {"": 1}}, {"priorities": ["s"]}, {"priorities": None},
        {"recreate_group": "no"}, {"recreate_group": 1}, {"claim_idle_ms": 86_400_001}, {"grace_s": float("nan")},
        {"max_lease_s": float("inf")},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RuntimeSettings(**wrong)


@pytest.mark.parametrize(
    ("settings", "options", "told"),
    [
        (RuntimeSettings(), {"grace_s": 1}, "not both"),
        ({}, {}, "must be RuntimeSettings"),
        (None, {"grace_s": 1, "grase_s": 2}, "no such option of runtime.Consumer: grase_s$"),
    ],
)
def test_settings_are_given_together_or_one_by_one_and_by_their_names(
    settings: Any, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        settings_from(settings, options)


def test_an_extension_may_take_a_sixth_of_the_claim_time() -> None:
    """Of three that a lease can miss, two may wait for servers that say nothing."""
    assert RuntimeSettings().heartbeat_timeout_s == 5.0
    assert RuntimeSettings(claim_idle_ms=600_000).heartbeat_timeout_s == 10.0
    assert RuntimeSettings(claim_idle_ms=300).heartbeat_timeout_s == 1.0


def test_defaults_are_those_of_the_seed() -> None:
    settings = RuntimeSettings()

    assert (settings.block_ms, settings.claim_idle_ms) == (5_000, 30_000)
    assert settings.heartbeat_s == 10
    assert settings.slice_ms == 1_000
    assert RuntimeSettings(claim_idle_ms=400).slice_ms == 100


@pytest.mark.parametrize("wrong", ["s", [], None, ["s", "s"], [""], [1], ["\ud800"]])
def test_streams_must_be_a_list_of_different_names(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        require_streams(wrong)


def test_a_message_shows_no_payload() -> None:
    assert "secret" not in repr(a_message())
    assert "secret" not in pretty_repr(a_message())  # what rich shows of local variables


def test_a_schedule_looks_everywhere_within_the_room_and_goes_on_where_it_stopped() -> None:
    schedule = StealSchedule(["a", "b", "c"], 4.0, rand=lambda: 0.5)
    assert schedule.due(100.0, 9, idle=True) == {}  # the first look is a quarter of the interval away
    assert schedule.next_look(100.0) == 1.0

    looks = schedule.due(101.0, 2, idle=True)
    assert looks == {"a": 1, "b": 1}
    schedule.looked("a", "5-0", 101.0)
    schedule.looked("b", START, 101.0)

    assert schedule.cursor("a") == "5-0"
    assert schedule.due(101.0, 10, idle=True) == {}  # new work has its turn first
    assert schedule.due(101.0, 10, idle=True) == {"a": 5, "c": 5}
    schedule.looked("a", START, 101.0)
    schedule.looked("c", START, 101.0)
    assert schedule.next_look(101.0) == 4.0


def test_under_load_every_fourth_turn_looks_while_there_is_more() -> None:
    schedule = StealSchedule(["a"], 4.0, rand=lambda: 0.0)
    looks = 0
    for _ in range(40):
        if schedule.due(10.0, 4, idle=False):
            looks += 1
            schedule.looked("a", "7-0", 10.0)
    assert looks == 10


def test_a_stream_that_refuses_took_nothing_back() -> None:
    assert handover.given_back([2, ResponseError("NOPERM"), 0]) == [2, 0, 0]


def test_the_id_behind_an_id() -> None:
    assert after("17-4") == "17-5"


def test_what_is_fresh_lost_acknowledged_or_overlong_is_not_extended() -> None:
    settings = RuntimeSettings(claim_idle_ms=30_000, max_lease_s=100)
    old = a_message("1-0", leased_at=0.0)
    messages = [
        old,
        a_message("2-0", leased_at=8.0),
        a_message("3-0", lease_lost=True),
        a_message("4-0", acknowledged=True),
        a_message("5-0", started_at=0.001),
    ]
    assert due(messages[:4], 10.0, settings) == [old]
    assert due([messages[4]], 200.0, settings) == []
    assert lapsed(messages, 200.0, settings) == [messages[4]]
    messages[4].settled = True
    assert lapsed(messages, 200.0, settings) == []


def test_the_table_holds_releases_and_copies() -> None:
    table = LeaseTable(["s", "t"])
    first, second = a_message("1-0"), a_message("1-0", "t")
    table.add([first, second])
    copied = table.snapshot()
    table.release(first)
    table.release(first)

    assert copied == [first, second]
    assert len(table) == 1
    assert table.of("t") == {"1-0": second}


class Custody:
    claim_idle_s = 30.0

    async def acknowledge(self, message: RuntimeMessage) -> None:
        message.acknowledged = True

    async def extend(self, message: RuntimeMessage) -> bool:
        return False


async def test_a_lease_that_was_not_extended_in_time_counts_as_lost_for_a_commit() -> None:
    """After a long pause of the process nobody has told us yet, and we must not commit all the same."""
    stale = MessageContext(a_message(leased_at=-1e9), Custody())

    assert stale.lease_lost is False
    with pytest.raises(LeaseLostError) as caught:
        stale.check_lease()
    assert caught.value.message_id == "1-0"
    with pytest.raises(LeaseLostError):
        await stale.extend()
    assert [stale.lease_lost, stale.lease_remaining_s] == [True, 0.0]
    stale.mark_acknowledged()
    stale.check_lease()
    assert stale.acknowledged


def test_handing_back_names_each_entry_with_the_count_from_before() -> None:
    packed = handover.commands([a_message("1-0", delivery_count=3), a_message("2-0")], "g", "me")

    assert packed["s"].endswith(b"$3\r\n1-0\r\n$1\r\n2\r\n$3\r\n2-0\r\n$1\r\n0\r\n")
    assert handover.commands([], "g", "me") == {}


def test_reconnecting_is_bounded_and_counted_and_a_success_starts_anew() -> None:
    reconnect = Reconnect(Backoff(base_s=1, factor=2, jitter=0), 2, "read")

    assert [reconnect.delay_s(), reconnect.delay_s(), reconnect.delay_s()] == [1, 2, None]
    reconnect.succeeded()
    assert reconnect.delay_s() == 1
    assert reconnect.total == 3


def test_many_observations_at_once_equal_as_many_single_ones() -> None:
    values = [0.0, 0.004, 0.005, 0.0051, 0.3, 9.99, 10.0, 10.1, 1e6]
    single, many = (Histogram("h", "h", registry=CollectorRegistry()) for _ in range(2))
    for value in values:
        single.observe(value)
    observe_many(many, values)

    def numbers(histogram: Histogram) -> list[tuple[str, Any, float]]:
        samples = next(iter(histogram.collect())).samples
        return [(s.name, s.labels, s.value) for s in samples if not s.name.endswith("_created")]

    assert numbers(single) == numbers(many)


@pytest.mark.parametrize(
    ("changed", "ready"),
    [
        ({}, True), ({"connected": False}, False), ({"lease_alive": False}, False),
        ({"status": Status.STOPPING}, False), ({"progress_age_s": 60.0}, False),
        ({"progress_age_s": 60.0, "active": 4}, True),
    ],
)  # fmt: skip
def test_ready_means_really_consuming(changed: dict[str, Any], ready: bool) -> None:  # noqa: FBT001
    facts: dict[str, Any] = {
        "status": Status.RUNNING, "connected": True, "progress_age_s": 0.1, "active": 1, "in_hand": 1,
        "unacknowledged": 0, "lease_alive": True, "lag": {}, "streams": {}, "reconnects": 0, "slots": 4,
        "patience_s": 4.0,
    }  # fmt: skip
    assert Health(**(facts | changed)).ready is ready


def test_async_is_recognised_in_its_disguises() -> None:
    class Callable:
        async def __call__(self) -> None: ...

    async def function() -> None: ...

    assert is_async(function)
    assert is_async(Callable())
    assert not is_async(print)
    with pytest.raises(ConfigurationError):
        is_async(3)  # type: ignore[arg-type]


async def test_events_reach_plain_and_async_callbacks_and_a_broken_one_hurts_nobody() -> None:
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
    await dispatcher.room()

    assert await dispatcher.close(timeout_s=1) == 0
    assert heard == [("plain", event), ("async", event), ("async", event)]
    assert dispatcher.heard == {Started}


async def test_a_callback_that_hangs_does_not_hang_the_end() -> None:
    dispatcher = EventDispatcher()

    async def hangs(event: Any) -> None:
        await asyncio.sleep(60)

    dispatcher.on("error", hangs)
    assert await dispatcher.close(timeout_s=0) == 0
    dispatcher.start()
    dispatcher.emit(EngineError(ValueError()))
    assert await dispatcher.close(timeout_s=0.05) == 1


@pytest.mark.parametrize("late", [True, False])
async def test_a_callback_that_is_cancelled_costs_nobody_else_an_event(*, late: bool) -> None:
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
    for told in range(1, 4):
        dispatcher.emit(Started(a_message()))
        await wait_until_async(lambda told=told: len(heard) == told)  # type: ignore[misc]
        await asyncio.sleep(0)

    assert await dispatcher.close(timeout_s=10) == 0
    assert len(heard) == 3


async def test_a_dispatcher_that_nobody_closed_ends_with_its_event_loop() -> None:
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
async def test_a_callback_that_keeps_its_cancellation_to_itself_does_not_hang_the_end(goes_on: bool) -> None:  # noqa: FBT001
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
    await asyncio.wait_for(dispatcher._task, 30)  # and calls nobody any more


async def test_whatever_a_callback_raises_the_next_event_is_told_and_no_payload_is_logged(
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
    failures = [record for record in caplog.records if record.getMessage() == "event callback failed"]
    assert len(failures) == 4
    assert {vars(record)["error"] for record in failures} == {"ValueError", "_OddError"}
    assert all(__file__ in vars(record)["line"] for record in failures)
    assert "4111" not in caplog.text


async def test_a_flush_that_is_not_waited_for_any_longer_leaves_nothing_behind() -> None:
    acknowledger = Acknowledger(
        cast("Any", None),
        group="g",
        table=LeaseTable(["s"]),
        reconnect=Reconnect(Backoff(), 1, "ack"),
        on_error=print,
        on_given_up=print,
        reader_is_coming=lambda: True,
    )
    acknowledger.add(a_message())
    acknowledger._task = asyncio.create_task(asyncio.sleep(60))
    before = asyncio.all_tasks()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await acknowledger.flush()
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - before
    acknowledger._task.cancel()

    assert left == set()


def _generator(event: Any) -> Any:
    yield event


class _OddError(BaseException):
    """Not an ``Exception``."""
