"""Messages that count as the same message."""

from typing import Any

import pytest

from conquiet.errors import MessageKeyError
from conquiet.queue.models import QueueMessage
from conquiet.transactional.inbox_keys import InboxKey, by_outbox_id, key_of


def a_message(payload: dict[str, Any] | None = None) -> QueueMessage:
    return QueueMessage("orders", "billing", "5-0", payload or {})


@pytest.mark.parametrize("key", [InboxKey("", "g", "1"), InboxKey("s", "g", "")])
def test_a_key_without_a_source_or_an_id_is_refused(key: InboxKey) -> None:
    with pytest.raises(MessageKeyError, match="empty"):
        key_of({}, lambda _: key)


def test_a_key_without_a_group_is_allowed() -> None:
    assert key_of({}, lambda _: InboxKey("q", "", "1")) == InboxKey("q", "", "1")


def test_a_stream_message_is_known_by_stream_group_and_entry_id() -> None:
    assert key_of(a_message()) == InboxKey("orders", "billing", "5-0")


def test_a_business_key_takes_the_place_of_the_entry_id_only() -> None:
    """Two groups have an effect each, with any key."""
    assert key_of(a_message({"order": "o-1"}), lambda msg: str(msg.payload["order"])) == InboxKey(
        "orders", "billing", "o-1"
    )


def test_a_key_function_may_choose_the_whole_key() -> None:
    assert key_of({"id": 1}, lambda msg: InboxKey("queue", "", f"a-{msg['id']}")) == InboxKey("queue", "", "a-1")


@pytest.mark.parametrize("payload", [{}, {"_outbox_id": ""}, {"_outbox_id": 5}])
def test_a_message_without_an_outbox_id_is_known_by_its_entry_id(payload: dict[str, Any]) -> None:
    assert by_outbox_id(a_message(payload)) == "5-0"


def test_a_message_out_of_an_outbox_is_known_by_its_id_there() -> None:
    assert by_outbox_id(a_message({"_outbox_id": "abc"})) == "abc"


@pytest.mark.parametrize("bad", ["", None, 5, "x" * 256, "é" * 128, "\ud800"])
def test_a_key_that_cannot_be_stored_is_refused_without_showing_it(bad: object) -> None:
    """A server that is not strict would cut a long key, and two messages would share it."""
    with pytest.raises(MessageKeyError) as caught:
        key_of(a_message({"email": "jane@example.org"}), lambda _: InboxKey("s", "g", bad))  # type: ignore[arg-type]

    assert "xxx" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_message_that_says_nothing_about_itself_needs_a_key_function() -> None:
    with pytest.raises(MessageKeyError, match="key function"):
        key_of({"order": 1})
