"""Which messages are the same message, and what may go into an outbox."""

from typing import Any

import pytest

from conquiet.errors import MessageKeyError, PayloadError
from conquiet.queue.models import QueueMessage
from conquiet.transactional.inbox_keys import InboxKey, by_outbox_id, key_of
from conquiet.transactional.payload import decode, encode


def a_message(payload: dict[str, Any] | None = None) -> QueueMessage:
    return QueueMessage("orders", "billing", "5-0", payload or {})


def test_a_stream_message_is_known_by_stream_group_and_entry_id() -> None:
    assert key_of(a_message()) == InboxKey("orders", "billing", "5-0")


def test_a_business_key_takes_the_place_of_the_entry_id_only() -> None:
    """Two groups have an effect each, whatever the key."""
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
    """A server that is not strict would cut a long key, and take two messages for one."""
    with pytest.raises(MessageKeyError) as caught:
        key_of(a_message({"email": "jane@example.org"}), lambda _: InboxKey("s", "g", bad))  # type: ignore[arg-type]

    assert "xxx" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_message_that_says_nothing_about_itself_needs_a_key_function() -> None:
    with pytest.raises(MessageKeyError, match="key function"):
        key_of({"order": 1})


@pytest.mark.parametrize("payload", [{}, {"a": [1, {"b": None}], "é": 1.5, "t": True}])
def test_a_payload_comes_out_as_it_went_in(payload: dict[str, Any]) -> None:
    assert decode(encode(payload)) == payload


@pytest.mark.parametrize(
    "payload",
    [
        [],
        {"a": float("nan")},
        {1: "a"},
        {"a": {2: "b"}},
        {"a": object()},
        {"a": "\ud800"},
        {"a": b"bytes"},
        {"_outbox_id": "x"},
        {"_event": "x"},
        {"a": "x" * 200},
    ],
)
def test_what_json_would_change_or_cannot_say_is_refused_without_showing_it(payload: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        encode(payload, max_bytes=100)

    assert "xxx" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("payload", "path"),
    [({"order": {"lines": [1, {"price": object()}]}}, "order.lines[1].price"), ({"_event": "x"}, "_event")],
)
def test_a_refusal_names_the_key(payload: Any, path: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode(payload)

    assert caught.value.path == path
    assert path in str(caught.value)
    assert path not in str(caught.value.reason)


def test_a_payload_that_contains_itself_is_refused() -> None:
    payload: dict[str, Any] = {}
    payload["self"] = payload

    with pytest.raises(PayloadError):
        encode(payload)
