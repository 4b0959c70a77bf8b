"""The failed attempts of a message, carried by its retries. Pure.

A retry carries its earlier attempts under the key ``failures`` of the envelope: which attempt, when it ended, how long
it took, the class of the error and its innermost frames. No text of an error and no value: a text often quotes what was
being worked on. A message that succeeds at once carries nothing.

See docs/decisions/0071.
"""

import functools
from pathlib import PurePath
from types import TracebackType
from typing import Any, Final

import msgspec

from conquiet.core.redaction import printable

MOST_BYTES: Final = 2_500
"""Most bytes of a message's story. The oldest attempts are dropped: a retry may add a bounded number of bytes."""

_FRAMES: Final = 3
_LONGEST_NAME: Final = 120

_Frame = tuple[str, int, str]
"""File, line and function."""


class FailedAttempt(msgspec.Struct, frozen=True, array_like=True):
    """One attempt that failed.

    Attributes:
        attempt: Its number, from 1; it restarts at 1 after a replay.
        ended_ms: When it ended, by the server's clock.
        duration_ms: How long its handler ran.
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
    """Return what is kept of an attempt that has failed."""
    duration_ms = max(0, round(duration_s * 1000))
    if error is None:
        return FailedAttempt(attempt, ended_ms, duration_ms)
    kind = type(error)
    name = _type_text(kind.__module__, kind.__qualname__)
    return FailedAttempt(attempt, ended_ms, duration_ms, name, innermost_frames(error.__traceback__))


def innermost_frames(trace: TracebackType | None) -> str:
    """Return the last frames of a traceback: file, line and function, without reading source files."""
    frames: list[_Frame] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return _frames_text(tuple(frames[-_FRAMES:]))


# A handler fails at the same place again and again.
@functools.lru_cache(maxsize=1_024)
def _frames_text(frames: tuple[_Frame, ...]) -> str:
    return "; ".join(
        printable(f"{'/'.join(PurePath(filename).parts[-2:])}:{line} in {function}", limit=_LONGEST_NAME)
        for filename, line, function in reversed(frames)
    )


@functools.lru_cache(maxsize=1_024)
def _type_text(module: str, name: str) -> str:
    return printable(name if module == "builtins" else f"{module}.{name}", limit=_LONGEST_NAME)


def add_attempt(story: tuple[FailedAttempt, ...], failed: FailedAttempt) -> tuple[FailedAttempt, ...]:
    """Return the story with one attempt more, without the oldest ones if it is too long."""
    longer = (*story, failed)
    while len(longer) > 1 and len(_encode(longer)) > MOST_BYTES:
        longer = longer[1:]
    return longer


def read_attempts(found: Any) -> tuple[FailedAttempt, ...]:
    """Return the story that an envelope carries; empty if it carries none, or one that another program wrote."""
    if not isinstance(found, list | tuple):
        return ()
    try:
        return msgspec.convert(found, tuple[FailedAttempt, ...])
    except msgspec.ValidationError:
        return ()
