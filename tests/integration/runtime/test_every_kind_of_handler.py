"""Rules about all handlers, asked of every kind: awaited, in a thread, and both with batches."""

from collections.abc import Callable
from typing import Any

import pytest

from conquiet.runtime.engine_events import Failed, Started, Succeeded
from conquiet.testing import wait_until_async

KINDS = ("async", "plain", "async batch", "plain batch")


def handler_of(kind: str, work: Callable[[list[Any]], None]) -> tuple[Any, dict[str, Any]]:
    """Return a handler that calls ``work`` with its messages, and the options that it needs."""
    options = {"claim_idle_ms": 600_000} | ({"batch": 5} if "batch" in kind else {})

    async def awaited(messages: Any, contexts: Any) -> None:
        work(messages if isinstance(messages, list) else [messages])

    def plain(messages: Any, contexts: Any) -> None:
        work(messages if isinstance(messages, list) else [messages])

    return (awaited if kind.startswith("async") else plain), options


@pytest.mark.spec("CM-001.11", "CM-001.12", "CM-001.13", "CM-001.14", "CM-004.6")
@pytest.mark.parametrize("kind", KINDS)
async def test_every_message_has_its_events_whatever_the_handler_is(
    make_engine: Any, run: Any, enqueue: Any, kind: str
) -> None:
    raised = KeyError("x")

    def work(messages: list[Any]) -> None:
        if any(message.data["n"] == 1 for message in messages):
            raise raised

    handler, options = handler_of(kind, work)
    engine = make_engine(handler, **options)
    heard: list[Any] = []
    errors: list[Any] = []
    for name in ("started", "succeeded", "failed"):
        engine.on(name, heard.append)
    engine.on("error", errors.append)
    good, bad = enqueue(2)
    running = run(engine)
    await wait_until_async(lambda: len(heard) == 4 and bool(errors), timeout_s=60)
    await running.stop()

    by_id = {entry: [event for event in heard if event.message.id == entry] for entry in (good, bad)}
    assert [type(event) for event in by_id[good]] == [Started, Succeeded]
    assert [type(event) for event in by_id[bad]] == [Started, Failed]
    assert by_id[good][1].duration_s >= 0
    assert by_id[bad][1].error is raised
    assert by_id[bad][1].duration_s >= 0
    assert [(event.error, event.message.id) for event in errors] == [(raised, bad)]


@pytest.mark.spec("CM-001.8")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_is_pending_until_its_handler_has_succeeded(
    make_engine: Any, run: Any, enqueue: Any, raw: Any, stream: str, pending: Any, kind: str
) -> None:
    held: list[bool] = []

    def work(messages: list[Any]) -> None:
        rows = {row["message_id"].decode() for row in raw.xpending_range(stream, "processor", "-", "+", 100)}
        held.extend(message.id in rows for message in messages)
        if any(message.data["n"] == 1 for message in messages):
            raise KeyError("x")

    handler, options = handler_of(kind, work)
    _, bad, _ = enqueue(3)
    running = run(make_engine(handler, **options))
    await wait_until_async(lambda: len(held) >= 3 and len(pending()) == 1, timeout_s=60)
    await running.stop()

    assert all(held)
    assert [row["message_id"].decode() for row in pending()] == [bad]
