"""Messages to emit: checked, encoded, and divided into atomic calls of a script."""

from datetime import datetime
from typing import Any

import pytest

from conquiet.core.json_codec import decode_payload
from conquiet.errors import ConfigurationError, PayloadError
from conquiet.processor import NewMessage, ProcessorSettings
from conquiet.processor.emit_requests import EmitPlanner, ScriptCall, new_states, parse_reply
from conquiet.processor.envelope import from_payload
from conquiet.processor.jobs import JobState


def steps_of(*messages: NewMessage, debounce: str | None = None, **settings: Any) -> list[ScriptCall]:
    return list(EmitPlanner("orders", ProcessorSettings(**settings)).steps(messages, debounce=debounce))


def test_a_chunk_of_messages_is_one_call() -> None:
    steps = steps_of(*(NewMessage("pay", {"n": n}) for n in range(5)), chunk_size=2)

    assert [len(step.messages) for step in steps] == [2, 2, 1]
    assert {step.script.name for step in steps} == {"emit_now"}


@pytest.mark.parametrize(
    "message", [NewMessage("pay", id="a"), NewMessage("pay", delay_s=1), NewMessage("pay", key="k")]
)
def test_an_id_a_delay_or_a_key_needs_the_full_script(message: NewMessage) -> None:
    (step,) = steps_of(NewMessage("pay"), message)

    assert step.script.name == "emit"


def test_every_message_is_checked_before_the_first_call() -> None:
    """A refused message must not leave those before it emitted."""
    planner = EmitPlanner("orders", ProcessorSettings(chunk_size=1))

    with pytest.raises(PayloadError):
        planner.steps([NewMessage("pay"), NewMessage("pay", {"n": float("nan")})])


def test_the_encoded_message_is_what_a_worker_reads() -> None:
    (step,) = steps_of(NewMessage("pay", {"n": 1}, id="m", key="k", max_attempts=3, headers={"a": "b"}))

    payload = step.messages[0].payload
    envelope = from_payload(decode_payload(payload, max_bytes=10_000), entry_id="1-1")
    assert (envelope.event, envelope.id, envelope.key, envelope.data) == ("pay", "m", "k", {"n": 1})
    assert (envelope.attempt, envelope.max_attempts, envelope.headers) == (1, 3, {"a": "b"})


@pytest.mark.parametrize(
    ("message", "debounce", "reason"),
    [
        (NewMessage("pay", delay_s=1, at=1.0), None, "delay_s or at, not both"),
        (NewMessage("pay", at=datetime(2026, 1, 1)), None, "time zone"),  # noqa: DTZ001 - the refused value
        (NewMessage("pay"), "name", "debounce needs delay_s"),
        (NewMessage("pay", delay_s=1, id="m"), "name", "debounce needs delay_s"),
        (NewMessage("pay", delay_s=1, at=1.0), "name", "debounce needs delay_s"),
    ],
)
def test_times_that_contradict_each_other_are_refused(message: NewMessage, debounce: str | None, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        steps_of(message, debounce=debounce)


def test_each_form_of_a_reply_is_read() -> None:
    (step,) = steps_of(*(NewMessage("pay", id=name) for name in "abcd"))

    added, delayed, behind, duplicate = parse_reply(step, [b"7-1", b"@5000", b"#2", b""])

    assert (added.entry_id, added.due_ms, added.duplicate) == ("7-1", None, False)
    assert (delayed.entry_id, delayed.due_ms) == (None, 5_000)
    assert (behind.entry_id, behind.ahead) == (None, 2)
    assert (duplicate.entry_id, duplicate.duplicate) == (None, True)


def test_a_duplicate_begins_no_job() -> None:
    (step,) = steps_of(*(NewMessage("pay", id=name) for name in "abc"))

    states = new_states(step, parse_reply(step, [b"7-1", b"", b"@5000"]))

    assert states == [("a", "pay", 1, JobState.WAITING), ("c", "pay", 1, JobState.DELAYED)]
