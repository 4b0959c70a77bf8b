"""A plain handler that outlives its event loop gets an error instead of waiting."""

import asyncio
import threading
from typing import Any

import pytest
from rich.pretty import pretty_repr

from conquiet.errors import LifecycleError
from conquiet.processor.context import SyncJobContext, in_thread, job_context
from conquiet.processor.envelope import Envelope
from conquiet.runtime.context import MessageContext
from conquiet.runtime.message import RuntimeMessage


class Emitter:
    """A server that never replies, or a call that fails."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.begun = threading.Event()
        self.error = error

    async def emit(self, event: str, data: Any, **options: Any) -> str:
        self.begun.set()
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        return event


def context_of(loop: asyncio.AbstractEventLoop, emitter: Emitter) -> SyncJobContext:
    delivery = MessageContext(RuntimeMessage("orders", "1-0", {}), None)  # type: ignore[arg-type]
    context = job_context(Envelope("pay", "m"), delivery, emitter, 1)  # type: ignore[arg-type]
    return in_thread(context, loop)


def test_a_call_that_the_loop_leaves_behind_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread would be waited for when the process ends, and the process would not end."""
    monkeypatch.setattr("conquiet.core.threads._POLL_S", 0.01)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _what: None)  # the task that was left behind
    emitter = Emitter()
    reported: list[type[BaseException]] = []

    def work() -> None:
        try:
            context_of(loop, emitter).emit("next")
        except LifecycleError as error:
            reported.append(type(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while not emitter.begun.is_set():
        loop.run_until_complete(asyncio.sleep(0.001))
    left = asyncio.all_tasks(loop)
    loop.close()
    thread.join(60)

    assert reported == [LifecycleError]
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()


def test_a_call_after_the_loop_is_refused_and_leaves_no_coroutine() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    with pytest.raises(LifecycleError):
        context_of(loop, Emitter()).emit("next")


async def test_a_timeout_of_the_call_is_the_calls() -> None:
    context = context_of(asyncio.get_running_loop(), Emitter(error=TimeoutError("its own")))

    with pytest.raises(TimeoutError, match="its own"):
        await asyncio.to_thread(context.emit, "next")


def test_no_representation_of_a_context_shows_its_payload() -> None:
    delivery = MessageContext(RuntimeMessage("orders", "1-0", {"card": "secret"}), None)  # type: ignore[arg-type]
    envelope = Envelope("pay", "m", {"card": "secret"}, headers={"token": "secret"})
    context = job_context(envelope, delivery, Emitter(), 1)  # type: ignore[arg-type]

    for one in (context, in_thread(context, None)):  # type: ignore[arg-type]
        assert "secret" not in repr(one)
        assert "secret" not in pretty_repr(one)  # rich's output for local variables
