"""Run a coroutine on the event loop from another thread."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_POLL_S = 1.0


def wait_on_loop(
    loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T], *, too_late: Callable[[], Exception]
) -> T:
    """Run a coroutine on the loop and wait for it in this thread. Raise ``too_late()`` if the loop is or gets closed.

    A closed loop notifies no waiter: the thread would never return, and the process would wait for it.
    """
    try:
        answer = asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError:
        call.close()
        raise too_late() from None
    while True:
        try:
            return answer.result(_POLL_S)
        except TimeoutError:
            if answer.done():  # raised by the coroutine
                raise
            if loop.is_closed():
                raise too_late() from None
