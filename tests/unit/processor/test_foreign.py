"""Streams with first entries that are not messages of a processor."""

import asyncio

import pytest

from conquiet.core.settlement import DeadLetter, KeepPending, Settlement, Stop
from conquiet.errors import MalformedMessageError
from conquiet.processor.foreign import ForeignGuard
from conquiet.runtime import RuntimeMessage

DEAD = DeadLetter("malformed")


class Engine:
    """Settles what the guard has held."""

    def __init__(self, *, has_messages: bool = False) -> None:
        self.settled: list[tuple[str, Settlement]] = []
        self.has_messages = has_messages

    async def settle(self, message: RuntimeMessage, settlement: Settlement) -> None:
        self.settled.append((message.id, settlement))

    async def is_ours(self, stream: str) -> bool:
        return self.has_messages


def an_entry(number: int) -> RuntimeMessage:
    return RuntimeMessage("s", f"{number}-0", {})


async def test_held_entries_are_settled_by_the_engine_once_a_message_comes() -> None:
    engine = Engine()
    guard = ForeignGuard(3, engine.is_ours, engine.settle)

    assert [await guard.decide(an_entry(n), DEAD) for n in (1, 2)] == [KeepPending(), KeepPending()]
    guard.accept("s")
    await guard.finish()

    assert engine.settled == [("1-0", DEAD), ("2-0", DEAD)]
    assert await guard.decide(an_entry(3), DEAD) is DEAD


async def test_the_last_of_too_many_foreign_entries_stops_the_engine() -> None:
    engine = Engine()
    guard = ForeignGuard(2, engine.is_ours, engine.settle)

    first, last, after = [await guard.decide(an_entry(n), DEAD) for n in (1, 2, 3)]
    await guard.finish()

    assert (first, after, engine.settled) == (KeepPending(), KeepPending(), [])
    assert isinstance(last, Stop)
    assert isinstance(last.failure, MalformedMessageError)


async def test_a_message_elsewhere_in_the_stream_dead_letters_its_first_entries() -> None:
    engine = Engine(has_messages=True)
    guard = ForeignGuard(2, engine.is_ours, engine.settle)

    assert [await guard.decide(an_entry(n), DEAD) for n in (1, 2)] == [KeepPending(), DEAD]
    await guard.finish()

    assert engine.settled == [("1-0", DEAD)]


async def test_an_entry_that_cannot_be_dead_lettered_later_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def settle(message: RuntimeMessage, settlement: Settlement) -> None:
        raise MalformedMessageError("away")

    guard = ForeignGuard(2, Engine().is_ours, settle)

    await guard.decide(an_entry(1), DEAD)
    guard.accept("s")
    await asyncio.wait_for(guard.finish(), 5)

    assert "stays pending" in caplog.text
