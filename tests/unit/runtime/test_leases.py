"""Commands that release messages uncharged."""

from redis.exceptions import ResponseError
from tests.unit.runtime.messages import a_message

from conquiet.runtime.leases import release_commands, released_by


def test_a_refused_release_counts_as_none() -> None:
    assert released_by([2, ResponseError("NOPERM"), 0]) == [2, 0, 0]


def test_a_release_restores_the_delivery_count_from_before() -> None:
    packed = release_commands([a_message("1-0", delivery_count=3), a_message("2-0")], "g", "me")

    assert packed["s"].endswith(b"$3\r\n1-0\r\n$1\r\n2\r\n$3\r\n2-0\r\n$1\r\n0\r\n")
    assert release_commands([], "g", "me") == {}
