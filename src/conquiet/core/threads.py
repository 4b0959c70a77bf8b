"""Run a handler or a blocking call in a thread, and a coroutine from another thread or without an event loop."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from conquiet.core.functions import call_in_thread

T = TypeVar("T")

_POLL_S = 1.0


def run_in_thread(threads: Executor, handler: Callable[..., Any], *arguments: Any) -> "asyncio.Future[Any]":
    """Call a plain handler in a thread, with a copy of the context variables. Return the future of its result.

    See ``call_in_thread`` for the errors.
    """
    run = contextvars.copy_context().run
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(threads, run, call_in_thread, "the handler", handler, *arguments)


def call_in_daemon_thread(
    name: str, call: Callable[[], T], *, discard: Callable[[T], object] = lambda _: None
) -> "Future[T]":
    """Call a blocking function in a daemon thread, which delays neither the caller nor the end of the process.

    Return the future of its result. ``discard`` receives the result if the future was cancelled before it was there.
    """
    answer: Future[T] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(call)
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting task or thread
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
            return
        if answer.set_running_or_notify_cancel():
            answer.set_result(result)
        else:
            discard(result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return answer


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
            if answer.done():  # raised by the coroutine, or done since
                return answer.result()
            if loop.is_closed():
                raise too_late() from None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, None if there is none."""
    return asyncio._get_running_loop()  # noqa: SLF001 - the public function raises without a loop


def run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop, and return its result.

    Where a synchronous and an asynchronous caller follow the same rules, the rules are one coroutine that is given its
    I/O: awaited calls of an asynchronous client, or blocking calls of a synchronous one, which never suspend.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a coroutine without an event loop was suspended")
