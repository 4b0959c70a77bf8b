"""Handle cancellations: of workers, swallowed by a library, or too late.

Up to Python 3.11 ``asyncio.wait_for`` returns its result instead of raising when it is cancelled in the iteration of
the loop in which the awaited call completes, and redis-py sends every command through it. The task then continues as if
it had not been cancelled. ``Task.cancelling()`` still counts the request, and this module checks it.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def reraise_swallowed_cancellation() -> Iterator[None]:
    """Re-raise a cancellation that the body swallowed, at its end.

    Earlier cancellation requests are ignored: a task that cleans up after a cancellation may still make calls.

    Raises:
        asyncio.CancelledError: The current task was cancelled during the body, and the body did not raise it.
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
    """Clear cancellation requests that were meant for finished work of the task."""
    while task.uncancel():
        pass


def cancel_from_any_thread(task: "asyncio.Task[Any] | None") -> None:
    """Cancel a task. Safe in a signal handler; no effect without a task, or if its loop is closed."""
    if task is not None:
        with suppress(RuntimeError):
            task.get_loop().call_soon_threadsafe(task.cancel)


async def wait_shielded(worker: asyncio.Task[T], *, stop: Callable[[], None], force: Callable[[], None]) -> T:
    """Wait for a worker even if the caller's task is cancelled.

    The first cancellation of the caller stops the worker, the second one forces the stop. The cancellation is raised
    once the worker has ended.
    """
    cancelled: asyncio.CancelledError | None = None
    while not worker.done():
        try:
            await asyncio.shield(worker)
        except asyncio.CancelledError as error:
            if worker.done():
                break
            # A cancelled read or acknowledgement would leave messages pending: stop the worker, do not cancel it.
            if cancelled is not None:
                force()
            cancelled = error
            stop()
        except Exception:  # noqa: BLE001 - raised again below, from the task itself
            break
    if cancelled is not None:
        if not worker.cancelled():
            worker.exception()  # mark it as retrieved: the caller gets the cancellation
        raise cancelled
    return worker.result()


def is_ending(owner: "asyncio.Task[Any] | None") -> bool:
    """Return True if a task has ended or is being cancelled. A cancellation of its children then ends them."""
    return owner is not None and (owner.done() or owner.cancelling() > 0)
