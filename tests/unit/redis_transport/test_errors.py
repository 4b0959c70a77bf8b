"""Translation of redis-py's errors."""

import pytest
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.errors import GroupMissingError, QueueError
from conquiet.redis_transport.errors import translate, translate_errors


@pytest.mark.parametrize(
    ("stream", "group", "place"),
    [
        ("orders", "billing", " on stream 'orders', group 'billing'"),
        ("orders", "", " on stream 'orders'"),
        ("", "", ""),
    ],
)
def test_an_error_names_what_there_is_to_name(stream: str, group: str, place: str) -> None:
    refused = translate(ResponseError("MISCONF x"), stream=stream, group=group, command="SCAN")
    lost = translate(RedisTimeoutError("x"), stream=stream, group=group, command="SCAN")
    unsent = translate(RedisTimeoutError("x"), stream=stream, group=group, command="SCAN", sent=False)

    assert str(refused) == f"SCAN{place} was refused by the server (MISCONF)"
    assert str(lost).startswith(f"SCAN{place} got no answer ")
    assert str(unsent).startswith(f"the command{place.replace(' on ', ' for ')} was not sent: ")
    assert [refused.in_doubt, lost.in_doubt, unsent.in_doubt] == [False, True, False]


def test_errors_of_the_body_are_translated_with_their_cause() -> None:
    gone = ResponseError("NOGROUP No such key")

    with pytest.raises(GroupMissingError) as caught, translate_errors("XREADGROUP", stream="orders", group="billing"):
        raise gone

    assert caught.value.__cause__ is gone
    assert (caught.value.stream, caught.value.group, caught.value.command) == ("orders", "billing", "XREADGROUP")


def test_an_error_of_ours_passes_the_translation() -> None:
    given = QueueError("x")

    with pytest.raises(QueueError) as caught, translate_errors("XADD"):
        raise given

    assert caught.value is given
