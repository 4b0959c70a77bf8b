"""Wrong arguments are refused where they are given; the longest waits are clamped. No server."""

from datetime import timedelta
from typing import Any

import pytest
import redis.asyncio

from conquiet.core import settlement
from conquiet.errors import ConfigurationError
from conquiet.processor import (
    DeadLetters,
    Emitter,
    Jobs,
    JobState,
    NewMessage,
    PartitionedProcessor,
    Processor,
    ProcessorSettings,
    RateLimit,
    Retry,
    RetryPolicy,
    SyncEmitter,
    SyncPartitionedEmitter,
)
from conquiet.processor.emit_requests import EmitPlanner
from conquiet.processor.policy import LONGEST_MS, decide, milliseconds

NOBODY = redis.asyncio.Redis(port=1)
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
