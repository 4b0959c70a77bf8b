from typing import Any

import pytest

from conquiet.errors import ConfigurationError
from conquiet.rabbit.connection_events import ConnectionEvent, ConnectionEvents, EventKind

LOST = ConnectionEvent(EventKind.LOST, "work", reason="connection")


def test_a_callback_is_called_for_its_event_until_it_ends() -> None:
    seen: list[ConnectionEvent] = []
    events = ConnectionEvents()
    events.on("lost", seen.append)

    events.emit(ConnectionEvent(EventKind.CONNECTED, "work"))
    events.emit(LOST)
    events.off("lost", seen.append)
    events.emit(LOST)

    assert seen == [LOST]


def test_a_callback_that_raises_stops_no_other() -> None:
    seen: list[ConnectionEvent] = []
    events = ConnectionEvents()
    events.on("lost", lambda event: event.no_such_fact)  # type: ignore[attr-defined]
    events.on("lost", seen.append)

    events.emit(LOST)

    assert seen == [LOST]


async def awaited(event: ConnectionEvent) -> None: ...


@pytest.mark.parametrize(
    ("name", "callback", "sentence"),
    [
        ("closed", print, "there are connected, lost, blocked, unblocked"),
        ("lost", None, "must be a plain function"),
        ("lost", awaited, "must be a plain function"),
        ("lost", lambda: None, r"called as callback\(event\)"),
    ],
)
def test_a_wrong_subscription_is_refused(name: str, callback: Any, sentence: str) -> None:
    """A coroutine would never run."""
    with pytest.raises(ConfigurationError, match=sentence):
        ConnectionEvents().on(name, callback)


def test_a_callback_that_is_not_subscribed_cannot_end() -> None:
    with pytest.raises(ConfigurationError, match="not subscribed"):
        ConnectionEvents().off("lost", print)
