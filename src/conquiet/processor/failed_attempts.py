"""The failed attempts of a message, stored in its retries. Pure.

A retry holds its earlier attempts under the key ``failures`` of the envelope: number, end, duration, class of the error
and its innermost frames. Error texts and values are not stored, because a text often quotes the message. A message
without a failed attempt stores nothing.

See docs/decisions/0018.
"""

import functools
from pathlib import PurePath
from types import TracebackType
from typing import Any, Final

import msgspec

from conquiet.core.redaction import printable

MOST_BYTES: Final = 2_500
"""Maximum size of the attempts of a message. The oldest attempts are dropped, so that a retry adds bounded bytes."""

_FRAMES: Final = 3
_LONGEST_NAME: Final = 120

_Frame = tuple[str, int, str]
"""File, line and function."""


class FailedAttempt(msgspec.Struct, frozen=True, array_like=True):
    """One failed attempt.

    Attributes:
        attempt: Its number, from 1. It restarts at 1 after a replay.
        ended_ms: When it ended, by the server's clock.
        duration_ms: Duration of the handler.
        error_type: Class of the error.
        frames: The innermost frames, the last one first, separated by semicolons.
    """

    attempt: int
    ended_ms: int
    duration_ms: int
    error_type: str = ""
    frames: str = ""


_encode = msgspec.json.Encoder().encode


def describe_attempt(attempt: int, error: BaseException | None, *, ended_ms: int, duration_s: float) -> FailedAttempt:
    """Return the stored form of a failed attempt."""
    duration_ms = max(0, round(duration_s * 1000))
    if error is None:
        return FailedAttempt(attempt, ended_ms, duration_ms)
    name = printable(error_type_of(error), limit=_LONGEST_NAME)
    return FailedAttempt(attempt, ended_ms, duration_ms, name, _innermost_frames(error.__traceback__))


def error_type_of(error: BaseException) -> str:
    """Return the qualified name of the class of an exception."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _innermost_frames(trace: TracebackType | None) -> str:
    """Return the last frames of a traceback: file, line and function, without reading source files."""
    frames: list[_Frame] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return _frames_text(tuple(frames[-_FRAMES:]))


# Cached, because a handler usually fails at the same place.
@functools.lru_cache(maxsize=1_024)
def _frames_text(frames: tuple[_Frame, ...]) -> str:
    return "; ".join(
        printable(f"{'/'.join(PurePath(filename).parts[-2:])}:{line} in {function}", limit=_LONGEST_NAME)
        for filename, line, function in reversed(frames)
    )


def add_attempt(story: tuple[FailedAttempt, ...], failed: FailedAttempt) -> tuple[FailedAttempt, ...]:
    """Return the attempts with one more, without the oldest if they exceed ``MOST_BYTES``."""
    longer = (*story, failed)
    while len(longer) > 1 and len(_encode(longer)) > MOST_BYTES:
        longer = longer[1:]
    return longer


def read_attempts(found: Any) -> tuple[FailedAttempt, ...]:
    """Return the failed attempts in an envelope. Empty if there are none, or if their format is invalid."""
    if not isinstance(found, list | tuple):
        return ()
    try:
        return msgspec.convert(found, tuple[FailedAttempt, ...])
    except msgspec.ValidationError:
        return ()
