"""What an error of the client library is called, and where it says it happened."""

import pytest
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.queue.faults import translate


@pytest.mark.parametrize(
    ("stream", "group", "place"),
    [
        ("orders", "billing", " on stream 'orders', group 'billing'"),
        ("orders", "", " on stream 'orders'"),
        ("", "", ""),
    ],
)
def test_an_error_names_what_there_is_to_name(stream: str, group: str, place: str) -> None:
    refused = translate(ResponseError("WRONGTYPE x"), stream=stream, group=group, command="SCAN")
    lost = translate(RedisTimeoutError("x"), stream=stream, group=group, command="SCAN")
    unsent = translate(RedisTimeoutError("x"), stream=stream, group=group, command="SCAN", sent=False)

    assert str(refused) == f"SCAN{place} was refused by the server (WRONGTYPE)"
    assert str(lost).startswith(f"SCAN{place} got no answer ")
    assert str(unsent).startswith(f"SCAN{place} was not sent: ")
    assert [refused.in_doubt, lost.in_doubt, unsent.in_doubt] == [False, True, False]
