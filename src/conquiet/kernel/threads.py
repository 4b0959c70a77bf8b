"""A thread that has an event loop do something."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LOOK_S = 1.0


def wait_on_loop(
    loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T], *, too_late: Callable[[], Exception]
) -> T:
    """Have the loop run it and wait for it, in a thread; raise ``too_late()`` if the loop is over, or ends meanwhile.

    A loop that has ended tells nobody. The thread would wait for ever, and the end of the process for the thread.
    """
    try:
        answer = asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError:
        call.close()
        raise too_late() from None
    while True:
        try:
            return answer.result(_LOOK_S)
        except TimeoutError:
            if answer.done():  # the call's own
                raise
            if loop.is_closed():
                raise too_late() from None
