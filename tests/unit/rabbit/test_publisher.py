"""A body is sent as it was meant, or not at all."""

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker

from conquiet.errors import ConfigurationError
from conquiet.rabbit import Outgoing
from conquiet.rabbit.confirms import _cause_of
from conquiet.rabbit.connection import Loss, LossKind
from conquiet.rabbit.publisher import encode

TOO_LARGE = "PRECONDITION_FAILED - message size 20971520 is larger than configured max size 16777216"  # RabbitMQ 4.3.6


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b"\xff\x00", b"\xff\x00"),
        (bytearray(b"\xff"), b"\xff"),
        (memoryview(b"\xff"), b"\xff"),
        ({"a": [1, None, True, 2.5, "é"]}, '{"a":[1,null,true,2.5,"é"]}'.encode()),
        (2**70, b"1180591620717411303424"),
    ],
)
def test_bytes_go_as_they_are_and_all_else_as_json(body: Any, sent: bytes) -> None:
    assert encode(Outgoing("q", body)).body == sent


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, b"bytes", {1, 2}, Decimal("1.10"), datetime(2026, 1, 1, tzinfo=UTC), "\ud800"],
    ids=repr,
)
def test_a_body_that_is_not_json_is_refused_and_not_converted(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="JSON"):
        encode(Outgoing("q", {"amount": value}))


def test_a_body_that_contains_itself_is_refused() -> None:
    body: list[Any] = []
    body.append(body)

    with pytest.raises(ConfigurationError, match="JSON"):
        encode(Outgoing("q", body))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (None, ""),
        (Loss(LossKind.CONNECTION, "StreamLostError"), " (StreamLostError)"),
        (Loss(LossKind.CHANNEL, "X (404)", 404), "named an exchange that does not exist; is there an exchange events?"),
        (
            Loss(LossKind.CHANNEL, "X (406)", 406, ChannelClosedByBroker(406, TOO_LARGE)),
            "is larger than the broker takes, see its max_message_size",
        ),
    ],
)
def test_a_publish_error_names_why_the_link_was_lost(loss: Loss | None, expected: str) -> None:
    assert expected in _cause_of(loss, "events")
