"""Failures and acknowledged messages are freed immediately: a cycle per message costs more than the message itself."""

import weakref
from typing import Any

import pytest
from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run

from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async


@pytest.mark.usefixtures("no_collector")
async def test_the_error_of_a_handler_is_freed_without_the_garbage_collector(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    """Its traceback refers to the frames that ran it, and none of them may refer to the error when it ends."""
    errors: list[weakref.ref[Exception]] = []

    class RefusedError(Exception):
        def __init__(self) -> None:
            errors.append(weakref.ref(self))

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        raise RefusedError

    running = run(make_engine(handler, claim_idle_ms=600_000))
    enqueue(20)

    def all_are_freed() -> bool:
        running.errors.clear()
        return len(errors) == 20 and not any(error() for error in errors)

    await wait_until_async(all_are_freed)
    await running.stop()


@pytest.mark.usefixtures("no_collector")
async def test_an_acknowledged_message_is_freed_before_the_next_ones_are_decoded(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two generations of messages in memory start the garbage collector with every read."""
    from conquiet.runtime.entry_decoder import EntryDecoder

    messages: list[weakref.ref[Any]] = []
    alive: list[int] = []
    decode = EntryDecoder.decode

    def counted(self: EntryDecoder, *args: Any, **options: Any) -> Any:
        alive.append(sum(message() is not None for message in messages))
        return decode(self, *args, **options)

    class Data(dict[str, Any]):
        """An object that a weak reference can point to."""

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        message.data = Data(message.data)
        messages.append(weakref.ref(message.data))

    monkeypatch.setattr(EntryDecoder, "decode", counted)
    enqueue(60)
    running = run(make_engine(handler, concurrency=10, prefetch=0))

    await wait_until_async(lambda: len(messages) == 60)
    await running.stop()

    assert len(alive) >= 6
    assert max(alive) == 0
