"""A retry carries its failed attempts: bounded, without a value of the message."""

from typing import Any

import msgspec

from conquiet.processor.failed_attempts import MOST_BYTES, FailedAttempt, add_attempt, describe_attempt, read_attempts

SECRET = "jane@example.org"


def failure() -> Exception:
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        return error


def test_an_attempt_is_described_by_class_and_frames_without_the_text() -> None:
    found = describe_attempt(2, failure(), ended_ms=1_000, duration_s=0.25)

    assert (found.attempt, found.ended_ms, found.duration_ms, found.error_type) == (2, 1_000, 250, "ValueError")
    assert "test_failed_attempts.py" in found.frames
    assert "in failure" in found.frames
    assert SECRET not in repr(found)


def test_the_story_is_bounded_and_keeps_the_newest() -> None:
    story: tuple[FailedAttempt, ...] = ()
    for number in range(1, 101):
        story = add_attempt(story, FailedAttempt(number, number, 1, "E" * 120, "f" * 120))

    assert story[-1].attempt == 100
    assert 1 < len(story) < 100
    assert len(msgspec.json.encode(story)) <= MOST_BYTES


def test_the_story_survives_json() -> None:
    story = (FailedAttempt(1, 5, 7, "ValueError", "a.py:1 in b"),)

    assert read_attempts(msgspec.json.decode(msgspec.json.encode(story))) == story


def test_a_history_written_by_another_program_is_ignored() -> None:
    unreadable: tuple[Any, ...] = (None, "x", {}, [1], [["a", 1, 2]], [[1]])
    for found in unreadable:
        assert read_attempts(found) == ()
