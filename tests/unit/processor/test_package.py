"""Wrong arguments are refused where they are given; the longest waits are clamped. No server."""

import threading
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from rich.pretty import pretty_repr

from conquiet.core import settlement, tracing
from conquiet.core.lifecycle import Status
from conquiet.errors import ConfigurationError
from conquiet.processor import (
    DeadFilter,
    DeadLetters,
    DeadRecord,
    Emitter,
    Jobs,
    JobState,
    KeyOrder,
    NewMessage,
    PartitionedEmitter,
    PartitionedProcessor,
    PartitionedStream,
    Pauses,
    Processor,
    ProcessorSettings,
    RateLimit,
    Reason,
    Retry,
    RetryPolicy,
    SyncEmitter,
    SyncPartitionedEmitter,
)
from conquiet.processor.emit_requests import EmitPlanner
from conquiet.processor.partitioned_dead_letters import PartitionedDeadLetters
from conquiet.processor.policy import LONGEST_MS, decide, milliseconds
from conquiet.redis_transport.client import clone_async

NOBODY = redis.asyncio.Redis.from_url("redis://127.0.0.1:1")
"""A client that is never called."""


@pytest.mark.parametrize("due", [{"delay_s": 5}, {"at": 2_000_000_000}])
async def test_a_message_that_is_waited_for_cannot_be_delayed(due: Any) -> None:
    """The caller would wait for a message that is not due yet."""
    for processor in (Processor(NOBODY, ["orders"]), PartitionedProcessor(NOBODY, "orders", partitions=2)):
        with pytest.raises(ConfigurationError, match=f"emit_and_wait takes no {min(due)}: its message is sent immed"):
            await processor.emit_and_wait("pay", **due)
    for emitter in (SyncEmitter(NOBODY, "orders"), SyncPartitionedEmitter(NOBODY, "orders")):
        with emitter, pytest.raises(ConfigurationError, match=f"emit_and_wait takes no {min(due)}"):
            emitter.emit_and_wait("pay", **due)


@pytest.mark.parametrize("seconds", [1e300, 1.7e308, 2.0**60])
def test_the_longest_waits_are_clamped_and_no_error(seconds: float) -> None:
    """An error here would follow the error of the handler: its message would be neither retried nor dead-lettered."""
    policy = RetryPolicy.fixed(seconds, max_attempts=2)

    for error in (Retry(seconds), ValueError()):
        assert decide(error, attempt=1, policy=policy) == settlement.RetryLater(LONGEST_MS, error, max_attempts=2)
    assert milliseconds(seconds) == LONGEST_MS
    assert RateLimit(1, seconds).interval_us == LONGEST_MS
    for message in (NewMessage("pay", delay_s=seconds), NewMessage("pay", at=seconds)):
        (step,) = EmitPlanner("orders", ProcessorSettings(dedupe_window_s=seconds)).steps([message])
        assert step.messages[0].when[1:] == str(LONGEST_MS)


def test_more_turns_than_can_be_counted_are_one_each_microsecond() -> None:
    assert RateLimit(10**400).interval_us == 1


@pytest.mark.parametrize("stream", ["", " ", "a\nb", "\ud800", 5])
async def test_a_stream_that_is_none_is_not_taken_for_the_usual_one(stream: Any) -> None:
    processor = Processor(NOBODY, ["orders"])

    for call in (
        Emitter(NOBODY, "orders").emit("pay", stream=stream),
        Emitter(NOBODY, "orders").emit_many([NewMessage("pay")], stream=stream),
        processor.pause(stream),
        processor.resume(stream),
        processor.paused(stream),
    ):
        with pytest.raises(ConfigurationError, match="stream"):
            await call
    with pytest.raises(ConfigurationError, match="stream"):
        processor.dead_letters(stream)


@pytest.mark.parametrize("argument", ["event", "id", "debounce"])
async def test_half_a_character_is_refused(argument: str) -> None:
    options: Any = {"event": "pay", argument: "pay \udc80"} | ({"delay_s": 1} if argument == "debounce" else {})

    with pytest.raises(ConfigurationError, match=argument):
        await Emitter(NOBODY, "orders").emit(**options)


async def _yields(ctx: Any, call_next: Any) -> Any:
    yield await call_next(ctx)


@pytest.mark.parametrize("broken", [None, _yields])
def test_middleware_that_cannot_be_awaited_is_refused(broken: Any) -> None:
    """It would be found out by the first message, and then by every other: all of them dead letters."""
    with pytest.raises(ConfigurationError, match="middleware"):
        Processor(NOBODY, ["orders"]).add_middleware(broken)


@pytest.mark.parametrize("wrong", [{"consumer_id": ""}, {"group": ""}, {"concurrency": True}])
def test_an_empty_argument_is_not_treated_as_missing(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Processor(NOBODY, ["orders"], **wrong)


def test_no_policy_is_not_taken_for_the_usual_one() -> None:
    wrong: Any = 0

    with pytest.raises(ConfigurationError, match="retry"):
        Processor(NOBODY, ["orders"]).handler("pay", retry=wrong)(print)


@pytest.mark.parametrize("wrong", [{"cursor": None}, {"cursor": True}, {"cursor": -1}, {"limit": 0}, {"state": "dead"}])
async def test_a_page_of_jobs_is_asked_for_in_numbers(wrong: dict[str, Any]) -> None:
    options: Any = {"state": JobState.DEAD} | wrong

    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        await Jobs(NOBODY).list("orders", **options)


async def test_a_count_that_no_script_can_hold_is_refused() -> None:
    """The server would refuse it after the dead letter is written, and the entry acknowledged."""
    with pytest.raises(ConfigurationError, match="dead_letters_max"):
        ProcessorSettings(dead_letters_max=10**30)
    with pytest.raises(ConfigurationError, match="max_count"):
        await DeadLetters(NOBODY, "orders").trim(max_count=10**30)


def test_a_delay_is_a_number_of_seconds_and_no_timedelta() -> None:
    wrong: Any = timedelta(seconds=1)

    with pytest.raises(ConfigurationError, match="delay_s must be a number of seconds, zero or more, got a timedelta"):
        EmitPlanner("orders", ProcessorSettings()).steps([NewMessage("pay", delay_s=wrong)])


@pytest.mark.parametrize("where", ["all", None, {"event": "pay"}, DeadFilter])
@pytest.mark.parametrize("kind", [DeadLetters, PartitionedDeadLetters])
async def test_dead_letters_are_selected_by_a_filter_and_nothing_else(kind: Any, where: Any) -> None:
    dead_letters = kind(NOBODY, "orders")

    for call in (dead_letters.list(where=where), dead_letters.replay(where), dead_letters.discard(where)):
        with pytest.raises(ConfigurationError, match=r"where must be a DeadFilter, got .*DeadFilter\(\) selects all"):
            await call


@pytest.mark.parametrize("limit", [0, -1, "3", True])
@pytest.mark.parametrize("kind", [DeadLetters, PartitionedDeadLetters])
async def test_a_limit_of_dead_letters_is_a_positive_number(kind: Any, limit: Any) -> None:
    """A partitioned stream accepted 0, which did nothing, and True, which meant 1."""
    dead_letters, where = kind(NOBODY, "orders"), DeadFilter()

    for call in (dead_letters.replay(where, limit=limit), dead_letters.discard(where, limit=limit)):
        with pytest.raises(ConfigurationError, match="limit must be a positive integer"):
            await call


async def test_a_rate_of_dead_letters_is_a_number_above_0() -> None:
    with pytest.raises(ConfigurationError, match="rate_per_s must be a number above 0"):
        await DeadLetters(NOBODY, "orders").replay(DeadFilter(), rate_per_s=0)


@pytest.mark.parametrize("ids", ["1763244000000-0", ["first"], [5]])
async def test_ids_to_discard_are_a_list_of_ids(ids: Any) -> None:
    with pytest.raises(ConfigurationError, match="id"):
        await DeadLetters(NOBODY, "orders").discard_ids(ids)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "first"},
        {"id": 5},
        {"event": 5},
        {"error_type": ValueError},
        {"reason": Reason.REJECTED},
        {"before_ms": "now"},
        {"since_ms": timedelta(hours=1)},
    ],
)
def test_a_filter_that_could_match_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{min(wrong)} "):
        DeadFilter(**wrong)


async def test_nothing_is_emitted_with_a_wrong_timeout() -> None:
    """The error means that nothing was sent, so the caller may repeat the call."""
    wrong: Any = "30"

    for emitter in (Emitter(NOBODY, "orders"), PartitionedEmitter(NOBODY, "orders")):
        with pytest.raises(ConfigurationError, match="timeout_s must be a number of seconds"):
            await emitter.emit_and_wait("pay", timeout_s=wrong)


async def test_a_stop_event_of_threads_is_refused_before_the_start() -> None:
    processor: Any = Processor(NOBODY, ["orders"])
    processor.handler("pay")(lambda ctx: None)

    with pytest.raises(ConfigurationError, match=r"stop_event must be an asyncio\.Event"):
        await processor.start(threading.Event())

    assert processor.status is Status.NEW


@pytest.mark.parametrize("kind", [Emitter, PartitionedEmitter])
@pytest.mark.parametrize("wrong", [{"event": "pay"}, NewMessage("pay", headers=5)])  # type: ignore[arg-type]
async def test_wrong_messages_are_refused_while_tracing_is_on(
    kind: Any, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = nullcontext(SimpleNamespace(headers={"traceparent": "00-1-2-01"}))
    monkeypatch.setattr(tracing, "active", SimpleNamespace(send=lambda *_, **__: span))

    with pytest.raises(ConfigurationError, match=r"messages must be NewMessage|headers must be a mapping"):
        await kind(NOBODY, "orders").emit_many([wrong])
    with pytest.raises(ConfigurationError, match="headers must be a mapping"):
        await kind(NOBODY, "orders").emit("pay", headers=5)


@pytest.mark.parametrize(
    "one",
    [
        NewMessage("pay", {"card": "secret"}, headers={"token": "secret"}),
        DeadRecord(reason="rejected", id="m", entry_id="1-0", group="g", payload={"card": "secret"}, error="secret"),
    ],
)
def test_no_representation_shows_a_payload(one: object) -> None:
    assert "secret" not in repr(one)
    assert "secret" not in pretty_repr(one)  # rich's output for local variables


@pytest.mark.parametrize("client", [redis.asyncio.Redis, partial(redis.asyncio.RedisCluster, "localhost")])
@pytest.mark.parametrize("kind", [Emitter, PartitionedEmitter])
def test_an_emitter_refuses_a_client_that_would_repeat_a_message(kind: Any, client: Any) -> None:
    """redis-py repeats a command after a lost reply, and reports nothing."""
    with pytest.raises(ConfigurationError, match=r"may store a message twice: use a Processor or a SyncEmitter"):
        kind(client(port=1), "orders")
    kind(clone_async(client(port=1)), "orders")


@pytest.mark.parametrize(
    "kind",
    [Jobs, Pauses, *(partial(kind, stream="orders") for kind in (DeadLetters, Emitter, KeyOrder, PartitionedStream))],
)
def test_a_client_with_other_replies_is_refused(kind: Any) -> None:
    """An emitter would raise an AttributeError after the message was written."""
    with pytest.raises(ConfigurationError, match="the client decodes replies"):
        kind(redis.asyncio.Redis(port=1, decode_responses=True))
    with pytest.raises(ConfigurationError, match="the client is a str"):
        kind("redis://localhost")
