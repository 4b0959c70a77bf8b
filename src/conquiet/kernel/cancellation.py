"""Cancellations that a library swallows, and those that come too late.

Up to Python 3.11 ``asyncio.wait_for`` returns its result instead of raising when it is cancelled in the turn of the
loop in which the awaited thing is done, and redis-py sends every command through it. The task goes on as if nobody had
asked, past its timeout or for ever. It still counts how often it was asked, and that is what we look at.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Raise at the end what was swallowed inside.

    Only what came meanwhile counts: a task that cleans up after a cancellation may go on calling.

    Raises:
        asyncio.CancelledError: The current task was cancelled in the meantime, and the body did not say so.
    """
    before = _times_cancelled()
    try:
        yield
    finally:
        if _times_cancelled() > before:
            raise asyncio.CancelledError


def _times_cancelled() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def forget_cancellations(task: "asyncio.Task[Any]") -> None:
    """Call off what a task was asked for: for one that lives on while what the request was meant for has ended."""
    while task.uncancel():
        pass


def is_ending(owner: "asyncio.Task[Any] | None") -> bool:
    """True if a task is over or was told to end: a cancellation of what it started is then meant as it says."""
    return owner is not None and (owner.done() or owner.cancelling() > 0)
