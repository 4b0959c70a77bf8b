"""Commands that release messages uncharged."""

from typing import Any

from redis.exceptions import ResponseError

from conquiet.runtime.leases import release_commands, released_by
from conquiet.runtime.message import RuntimeMessage


def a_message(message_id: str = "1-0", stream: str = "s", **facts: Any) -> RuntimeMessage:
    message = RuntimeMessage(stream, message_id, {"secret": "x"}, leased_at=facts.pop("leased_at", 0.0))
    for name, value in facts.items():
        setattr(message, name, value)
    return message


def test_a_refused_release_counts_as_none() -> None:
    assert released_by([2, ResponseError("NOPERM"), 0]) == [2, 0, 0]


def test_a_release_restores_the_delivery_count_from_before() -> None:
    packed = release_commands([a_message("1-0", delivery_count=3), a_message("2-0")], "g", "me")

    assert packed["s"].endswith(b"$3\r\n1-0\r\n$1\r\n2\r\n$3\r\n2-0\r\n$1\r\n0\r\n")
    assert release_commands([], "g", "me") == {}
