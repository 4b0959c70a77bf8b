"""Poll a condition with a deadline, in place of a sleep.

A fixed sleep is either too short on a busy machine or too long on an idle one. These functions poll
often, return as soon as the condition holds, and name the missing condition when it does not.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 180.0
"""Long enough for slow work: a busy test machine can be tens of times slower than an idle one. It ends a hang."""
DEFAULT_INTERVAL_S = 0.01


def wait_until(
    predicate: Callable[[], T],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    interval_s: float = DEFAULT_INTERVAL_S,
    message: str | Callable[[], str] = "",
) -> T:
    """Call ``predicate`` until its result is truthy, and return that result.

    Args:
        predicate: Called at least once, even with a timeout of zero, and once more after the deadline.
        timeout_s: Longest wait.
        interval_s: Pause between two calls.
        message: The awaited condition; a callable is called only when the wait failed.

    Raises:
        TimeoutError: The result was still falsy at the deadline.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        # Read the clock first: a slow predicate is then still called once after the deadline.
        expired = time.monotonic() >= deadline
        if answer := predicate():
            return answer
        if expired:
            raise TimeoutError(_complaint(message, timeout_s, answer))
        time.sleep(interval_s)


@overload
async def wait_until_async(
    predicate: Callable[[], Awaitable[T]],
    *,
    timeout_s: float = ...,
    interval_s: float = ...,
    message: str | Callable[[], str] = ...,
) -> T: ...


@overload
async def wait_until_async(
    predicate: Callable[[], T],
    *,
    timeout_s: float = ...,
    interval_s: float = ...,
    message: str | Callable[[], str] = ...,
) -> T: ...


async def wait_until_async(
    predicate: Callable[[], Any],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    interval_s: float = DEFAULT_INTERVAL_S,
    message: str | Callable[[], str] = "",
) -> Any:
    """Poll like :func:`wait_until`, without blocking the event loop. ``predicate`` may be a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while True:
        expired = time.monotonic() >= deadline
        outcome = predicate()
        answer = await outcome if inspect.isawaitable(outcome) else outcome
        if answer:
            return answer
        if expired:
            raise TimeoutError(_complaint(message, timeout_s, answer))
        await asyncio.sleep(interval_s)


def _complaint(message: str | Callable[[], str], timeout_s: float, answer: object) -> str:
    what = message() if callable(message) else message
    return f"{what or 'the awaited fact'}: not so within {timeout_s:g} s (last answer: {answer!r}){_load()}"


def _load() -> str:
    """Return the load of the machine, for the error text: on an overloaded machine only the limit was too short."""
    try:
        return f"; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    except (AttributeError, OSError):  # Windows, or a system without this information
        return ""
