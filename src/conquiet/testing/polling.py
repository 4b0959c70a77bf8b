"""Poll a condition with a deadline, in place of a sleep.

A fixed sleep is either too short on a busy machine or too long on an idle one. These functions poll
often, return soon after the condition holds, and name the missing condition when it does not.
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
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.05


def wait_until(
    predicate: Callable[[], T],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    interval_s: float | None = None,
    message: str | Callable[[], str] = "",
) -> T:
    """Call ``predicate`` until its result is truthy, and return that result.

    Args:
        predicate: Called at least once, even with a timeout of zero, and once more after the deadline.
        timeout_s: Longest wait.
        interval_s: Pause between two calls. By default 10 ms at first, and up to 50 ms in a long wait: ten seconds of
            queries every 10 ms take a second of processor time from the work that is awaited.
        message: The awaited condition; a callable is called only when the wait failed.

    Raises:
        TimeoutError: The result was still falsy at the deadline.
        TypeError: ``predicate`` is a coroutine function, for which there is :func:`wait_until_async`.
    """
    begun = time.monotonic()
    while True:
        # Read the clock first: a slow predicate is then still called once after the deadline.
        waited_s = time.monotonic() - begun
        answer = predicate()
        if inspect.iscoroutine(answer):
            answer.close()
            raise TypeError("wait_until cannot await: a coroutine is always true. Use: await wait_until_async(…)")
        if answer:
            return answer
        if waited_s >= timeout_s:
            raise TimeoutError(_complaint(message, timeout_s, answer))
        time.sleep(_pause_s(waited_s) if interval_s is None else interval_s)


@overload
async def wait_until_async(
    predicate: Callable[[], Awaitable[T]],
    *,
    timeout_s: float = ...,
    interval_s: float | None = ...,
    message: str | Callable[[], str] = ...,
) -> T: ...


@overload
async def wait_until_async(
    predicate: Callable[[], T],
    *,
    timeout_s: float = ...,
    interval_s: float | None = ...,
    message: str | Callable[[], str] = ...,
) -> T: ...


async def wait_until_async(
    predicate: Callable[[], Any],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    interval_s: float | None = None,
    message: str | Callable[[], str] = "",
) -> Any:
    """Poll like :func:`wait_until`, without blocking the event loop. ``predicate`` may be a coroutine function."""
    begun = time.monotonic()
    while True:
        waited_s = time.monotonic() - begun
        outcome = predicate()
        answer = await outcome if inspect.isawaitable(outcome) else outcome
        if answer:
            return answer
        if waited_s >= timeout_s:
            raise TimeoutError(_complaint(message, timeout_s, answer))
        await asyncio.sleep(_pause_s(waited_s) if interval_s is None else interval_s)


def _pause_s(waited_s: float) -> float:
    """Return a twentieth of the time that was waited, within the limits: the wait ends 5 % late at most."""
    return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, waited_s / 20))


def _complaint(message: str | Callable[[], str], timeout_s: float, answer: object) -> str:
    what = message() if callable(message) else message
    return f"{what or 'the awaited fact'}: not so within {timeout_s:g} s (last answer: {answer!r}){_load()}"


def _load() -> str:
    """Return the load of the machine, for the error text: on an overloaded machine only the limit was too short."""
    try:
        return f"; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    except (AttributeError, OSError):  # Windows, or a system without this information
        return ""
