"""Payloads of the outbox."""

from typing import Any

import pytest

from conquiet.errors import PayloadError
from conquiet.transactional.payload import decode, encode


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
def test_a_value_that_json_would_change_is_refused_and_not_shown(payload: Any) -> None:
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
